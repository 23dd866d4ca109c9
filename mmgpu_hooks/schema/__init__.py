"""Records of the evidence and of answers: frozen, with the unit in each name.

``None`` always means *unknown* and never zero; where a figure can be unknown
for several reasons, the record carries the reason beside it.
"""
