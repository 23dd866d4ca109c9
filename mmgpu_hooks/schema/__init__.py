"""What is recorded and what is answered: frozen, and the unit is in each name.

``None`` always means *unknown* and never zero; where a figure can be unknown
for several reasons, the record carries the reason beside it.
"""
