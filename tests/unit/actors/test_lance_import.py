"""LanceDB without its catalogue client does what this house wants of it. In a process of its own."""

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from actors.lance_import import leave_out_catalogues
leave_out_catalogues()
import lancedb, pyarrow as pa
from lancedb.index import FTS
from lancedb.query import MatchQuery
vectors = pa.array([[1.0, 0.0], [0.0, 1.0]], type=pa.list_(pa.float32(), 2))
rows = pa.table({"id": ["a", "b"], "text": ["tea", "milk"], "v": vectors})
table = lancedb.connect(sys.argv[1]).create_table("t", rows)
table.create_index("text", config=FTS(base_tokenizer="whitespace"))
near = table.search([0.0, 1.0], vector_column_name="v").limit(1).to_list()
found = table.search(MatchQuery("tea", column="text"), query_type="fts").limit(1).to_list()
print(near[0]["id"], found[0]["id"], table.count_rows(), "pydantic" in sys.modules)
print(type(sys.modules["lance_namespace"]).__name__)
"""


def test_vectors_and_words_are_found(tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert shown.split()[:3] == ["b", "a", "2"]
    assert shown.split()[-1] == "_Placeholder"
