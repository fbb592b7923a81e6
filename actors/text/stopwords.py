"""English words that say how a sentence is built, not what it is about.

They are indexed, so that a message made of nothing else ("who are you?", "NOT") can be found, but a query that has
any other word leaves them out: asking for them costs up to 4 points of recall on chats. Question words and
auxiliaries belong to them, because memories are mostly asked for in questions. Not in the list: "may", a month;
"before", "after", "up", "out" and their like, which carry meaning (0.2 points better on chats); anything Chinese,
since the lists in use hold words such as 最近 and 以后 and cost up to 4 points on Chinese notes.
"""

STOP_WORDS = frozenset(
    """
    a an the this that these those
    i me my mine myself we us our ours ourselves you your yours yourself yourselves
    he him his himself she her hers herself it its itself they them their theirs themselves
    and or but nor if then else than so as because while until though although whether
    of at by for with without about between to in on via per
    be am is are was were been being have has had having do does did doing done
    can could should would shall will might must ought
    dont doesnt didnt isnt arent wasnt werent hasnt havent hadnt cant couldnt shouldnt wouldnt wont mustnt aint
    what when where which who whom whose why how
    here there all any both each few more most other some such no not only own same too very just also
    """.split()  # noqa: SIM905 (a list of quoted words could not be read)
)
