"""Rankings by consistency: who or what ranks, how votes become one ranking, and how well they agree.

A *vote* is one annotator's order of one instance's candidates. Sources of votes (:mod:`.sources`) share one
interface: the embedded world's recogniser, people on a web page, a vision-language model as judge, a file.
"""
