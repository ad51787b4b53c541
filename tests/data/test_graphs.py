"""Readers of graphs: every format gives the same graph; what is wrong is named with file and line."""

import json

import numpy as np
import pytest
import torch

from regard.data.graphs import GraphData, make_graph, read_graphs, tree_pairs
from regard.data.lines import Fault
from regard.errors import BadFile, MissingFile, NotSupported
from regard.patterns import edges

PAIRS = {(0, 1), (1, 0), (1, 2), (2, 1), (2, 2)}


def only(source, **options) -> GraphData:
    (graph,) = read_graphs(str(source), **options)
    assert isinstance(graph, GraphData), graph
    return graph


def pairs_of(graph):
    return {tuple(pair) for pair in graph.pairs_E2.tolist()}


def write_table(folder, edge_lines, nodes="id,label,size\na,x,1\nb,y,2\nc,x,3\nd,,4\n"):
    (folder / "edges.csv").write_text(edge_lines)
    (folder / "nodes.csv").write_text(nodes)
    return {"source": str(folder / "edges.csv"), "nodes": str(folder / "nodes.csv")}


def planetoid(path, **changes):
    arrays = {
        "x_indptr": np.array([0, 1, 3, 3]), "x_indices": np.array([0, 0, 1]), "x_data": np.ones(3), "x_shape": np.array([3, 2]),
        "edges": np.array([[0, 1], [1, 2], [2, 2]]), "label": np.array([1, 0, -1]), "train": np.array([0]), "val": np.array([1]),
    }  # fmt: skip
    np.savez(path, **arrays | changes)
    return path


def test_planetoid(tmp_path):
    graph = only(planetoid(tmp_path / "g.npz"))
    assert pairs_of(graph) == PAIRS and graph.labels == ("1", "0", "") and graph.parts == ("train", "valid", "")
    assert graph.features.names == ("0", "1") and graph.features.first.tolist() == [0, 1, 3, 3]
    assert pairs_of(only(tmp_path / "g.npz", directed=True)) == {(1, 0), (2, 1), (2, 2)}  # targets attend to sources


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"edges": np.array([[0, 3]])}, "row 0 of edges.*does not exist"),
        ({"edges": np.zeros(3, int)}, "expected"),
        ({"x_indices": np.array([0, 0, 2])}, "do not fit"),
        ({"x_data": np.array([1, np.nan, 1])}, "do not fit"),
        ({"train": np.array([7])}, "train has a node"),
    ],
)
def test_planetoid_that_is_wrong(tmp_path, changes, what):
    with pytest.raises(BadFile, match=what):
        only(planetoid(tmp_path / "g.npz", **changes))


def test_edge_list_and_table(tmp_path):
    graph = only(**write_table(tmp_path, "source,target,weight\na,b,0.5\nb,c,1\nc,c,2\nb,a,9\n"))
    assert pairs_of(graph) == PAIRS and graph.nodes == ("a", "b", "c", "d") and graph.labels == ("x", "y", "x", "")
    assert graph.features.value_T.tolist() == [1, 2, 3, 4]  # node d has no edge, and is there
    weight = dict(zip(map(tuple, graph.pairs_E2.tolist()), graph.edge_EF[:, 0].tolist(), strict=True))
    assert weight == {(1, 0): 0.5, (0, 1): 0.5, (2, 1): 1, (1, 2): 1, (2, 2): 2}  # of an edge that is listed twice the first
    alone = only(tmp_path / "edges.csv", directed=True)
    assert alone.nodes == ("a", "b", "c") and set(alone.features.names) <= {f"degree {n}" for n in range(5)}


@pytest.mark.parametrize(
    ("edge_lines", "nodes", "where", "what"),
    [
        ("a,b\nb,e\n", None, "edges.csv, line 2", "'e' is not in"),
        ("a,b\nb\n", None, "edges.csv, line 2", "no edge"),
        ("a,b,1\nb,c,x\n", None, "edges.csv, line 2", "no edge"),
        ("a,b\n", "id,label\na,x\na,y\nb,x\n", "nodes.csv, line 3", "listed already"),
        ("a,b\n", "id,label\na,x\nb\n", "nodes.csv, line 3", "another number"),
        ("a,b\n", "id,label,split\na,x,middle\nb,x,\n", "nodes.csv, line 2", "unknown split"),
    ],
)
def test_faults_of_tables_name_file_and_line(tmp_path, edge_lines, nodes, where, what):
    found = list(read_graphs(**write_table(tmp_path, edge_lines, *([] if nodes is None else [nodes]))))
    faults = [str(one) for one in found if isinstance(one, Fault)]
    assert any(where in fault and what in fault for fault in faults), faults


def test_a_table_without_ids(tmp_path):
    with pytest.raises(BadFile, match="expected a header with id"):
        list(read_graphs(**write_table(tmp_path, "a,b\n", "name,label\na,x\n")))


def test_objects(tmp_path):
    path = tmp_path / "g.jsonl"
    lines = [
        {"edges": [[0, 1], [1, 2], [2, 2]], "nodes": [[1.5], [2], {"kind": "c"}], "labels": ["x", None, "y"]},
        {"edges": [], "nodes": [[1.0]], "y": 3},
        {"edges": [[0, 5]], "nodes": [[1.0]]},
        {"edges": "no"},
        {"edges": [[0, 1]], "nodes": [[1], [2]], "labels": ["x"]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    one, two, *faults = read_graphs(str(path))
    assert pairs_of(one) == PAIRS and one.labels == ("x", "", "y") and one.features.names == ("0", "kind=c")
    assert two.label == "3" and not len(two.pairs_E2)
    assert ["line 3" in str(faults[0]), "line 4" in str(faults[1]), "line 5" in str(faults[2])] == [True] * 3


def test_graphml(tmp_path):
    networkx = pytest.importorskip("networkx")
    found = networkx.Graph()
    found.add_nodes_from([("a", {"label": "x", "size": 1.0}), ("b", {"label": "y", "size": 2.0}), ("c", {"size": 3.0})])
    found.add_edges_from([("a", "b"), ("b", "c"), ("c", "c")])
    networkx.write_graphml(found, tmp_path / "g.graphml")
    graph = only(tmp_path / "g.graphml")
    assert pairs_of(graph) == PAIRS and graph.labels == ("x", "y", "") and graph.features.value_T.tolist() == [1, 2, 3]
    (tmp_path / "bad.graphml").write_text("<graphml")
    with pytest.raises(BadFile, match="no GraphML"):
        only(tmp_path / "bad.graphml")
    (tmp_path / "entity.graphml").write_text('<!DOCTYPE x [<!ENTITY a "b">]><graphml/>')
    with pytest.raises(BadFile, match="document type"):
        only(tmp_path / "entity.graphml")


CONLLU = """# text = Dogs bark
1\tDogs\tdog\tNOUN\tNNS\t_\t2\tnsubj\t_\t_
2\tbark\tbark\tVERB\tVBP\t_\t0\troot\t_\t_
3-4\twon't\t_\t_\t_\t_\t_\t_\t_\t_
3\tloudly\tloudly\tADV\tRB\t_\t2\tadvmod\t_\t_

1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
"""


def test_syntax_trees(tmp_path):
    path = tmp_path / "s.conllu"
    path.write_text(CONLLU)
    one, two = read_graphs(str(path), label="upos")
    assert one.nodes == ("Dogs", "bark", "loudly") and one.labels == ("NOUN", "VERB", "ADV")
    assert pairs_of(one) == {(0, 1), (1, 0), (2, 1), (1, 2)} and two.nodes == ("Go",)
    pattern = edges(torch.tensor(tree_pairs([1, -1, 1])).T)
    assert pattern.draw(3).splitlines() == ["·■·", "■·■", "·■·"]
    path.write_text(CONLLU.replace("\t2\tnsubj", "\tx\tnsubj"))
    fault, _ = read_graphs(str(path), label="upos")
    assert isinstance(fault, Fault) and "line 2" in str(fault)
    with pytest.raises(NotSupported, match="expected one of"):
        list(read_graphs(str(path), label="colour"))


def test_a_folder_per_class(tmp_path):
    for name in ("rings", "stars"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text('{"edges": [[0, 1]]}\n')
    assert [graph.label for graph in read_graphs(str(tmp_path))] == ["rings", "stars"]


def test_generated_graphs():
    blocks = only("blocks:nodes=60,seed=1")
    assert len(blocks.nodes) == 60 and set(blocks.parts) == {"train", "valid", "test"}
    assert only("blocks:nodes=60,seed=1").content() == blocks.content() != only("blocks:nodes=60,seed=2").content()
    assert {graph.label for graph in read_graphs("shapes:count=8")} == {"ring", "star", "tree", "grid"}
    with pytest.raises(MissingFile, match="blocks, shapes, karate"):
        only("nowhere.csv")


def test_karate():
    pytest.importorskip("networkx")
    club = only("karate")
    assert len(club.nodes) == 34 and len(club.pairs_E2) == 156 and len(set(club.labels)) == 2


def test_part_of_a_graph():
    graph = make_graph(
        "line", "abcdef", [(n, n + 1) for n in range(5)] + [(n + 1, n) for n in range(5)], [{"x": float(n)} for n in range(6)]
    )
    around = graph.around(2, 1, 10)
    assert sorted(around.tolist()) == [1, 2, 3] and graph.around(2, 5, 4).tolist()[0] == 2 and len(graph.around(2, 5, 4)) == 4
    part = graph.of_nodes(np.array([2, 1, 3]))
    assert (
        part.nodes == ("c", "b", "d") and pairs_of(part) == {(0, 1), (1, 0), (0, 2), (2, 0)} and part.features.value_T.tolist() == [2, 1, 3]
    )
