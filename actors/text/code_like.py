"""Whether a question is about a piece of code, for the weight of the two lists in the fusion of a search.

Embedding models know nothing of identifiers, numbers and options, and push what matches them exactly down the list;
for such a question the words count for more.
"""

import re

_CODE_LIKE = re.compile(
    r"""
      [A-Za-z0-9][_.][A-Za-z0-9_]     # an underscore or a dot inside a word: user_id, app.py, 2.5
    | (?<![\w-])--?[A-Za-z]           # an option: --flag, -v
    | [\w~.:][/\\]\w | (?<!\S)/\w      # a path: src/app, ~/notes, /etc
    | [#]\d | \d{3}                   # a number of an issue, a port, an error
    | [a-z][A-Z]                      # camelCase
    | [A-Za-z]Error\b                 # ValueError
    | \b_+[A-Za-z]                    # _private
    """,
    re.VERBOSE | re.ASCII,
)


def is_code_like(query: str) -> bool:
    """Say whether the query holds a token such as an identifier, an option, a path or a number of three digits."""
    return _CODE_LIKE.search(query) is not None
