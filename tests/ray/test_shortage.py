from rayplane.runtime.ray.shortage import Host, Want, shortage

HOSTS = [Host("a" * 56, "gpu-4", 8), Host("b" * 56, "gpu-5", 2)]


def test_what_fits_lacks_nothing() -> None:
    assert shortage([Want(2), Want(4), Want(4)], "GPU", HOSTS) == ""
    assert shortage([Want(8, "a" * 56), Want(2)], "GPU", HOSTS) == ""


def test_bundle_larger_than_any_node_names_the_largest() -> None:
    assert shortage([Want(9)], "GPU", HOSTS) == "needs 9 GPU on one node; the largest has 8 (gpu-4: 8, gpu-5: 2)"


def test_bundle_larger_than_its_node_names_that_node() -> None:
    assert shortage([Want(4, "b" * 56)], "GPU", HOSTS) == "needs 4 GPU on one node; the largest has 2 (gpu-5: 2)"


def test_too_many_bundles_name_what_there_is() -> None:
    assert shortage([Want(4)] * 3, "CPU", HOSTS) == "needs 12 CPU in 3 parts, each on one node; there are gpu-4: 8, gpu-5: 2"


def test_node_that_is_gone_is_named() -> None:
    said = shortage([Want(1, "c" * 56, "gpu-6")], "CPU", HOSTS)
    assert said == "needs node gpu-6, which is not in the cluster any more; it has gpu-4: 8, gpu-5: 2"


def test_empty_cluster_has_no_nodes() -> None:
    assert shortage([Want(1)], "CPU", []) == "needs 1 CPU on one node; the largest has 0 (no nodes)"
