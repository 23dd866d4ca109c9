"""Records of the evidence file and of commands' answers, with units in field names.

``None`` always means *unknown* and never zero; where a figure can be unknown
for several reasons, the record carries the reason beside it.
"""
