"""Draft trees on the host, for releases whose only implementation is a CUDA kernel.

A draft tree of one request has `num_draft` nodes. Node 0 is the last verified token; node `j + 1` is the candidate
`selected[j]` of the flat candidate list. Candidates come in groups of `topk` that share a parent: group 0 hangs off the
root, group `g` off the node that holds candidate `parents[g]`.
"""


def _parent_nodes(parents, selected, topk):
    """The parent node of each node; -1 for the root and for a node whose parent was not selected."""
    node_of = {candidate: node for node, candidate in reversed(list(enumerate(selected, start=1)))}
    groups = [candidate // topk for candidate in selected]
    return [-1] + [0 if group == 0 else node_of.get(parents[group], -1) for group in groups]


def build_tree(
    parent_list,
    selected_index,
    seq_lens,
    tree_mask,
    positions,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    topk,
    depth,
    num_draft,
    mask_mode=0,
):
    """Fill the last five tensors in place.

    `tree_mask` (bool, flat) has, for each request, `num_draft` rows: over the prefix and the tree (mode 0) or over the
    tree only (mode 1). The linked lists say for a node its flat index, first child and next sibling, -1 for none.
    """
    if int(mask_mode) not in (0, 1):
        raise NotImplementedError("bit-packed tree mask")
    with_prefix = int(mask_mode) == 0
    mask, flat_positions = tree_mask.view(-1), positions.view(-1)
    start = 0
    for row, length in enumerate(seq_lens.tolist()):
        parent = _parent_nodes(parent_list[row].tolist(), selected_index[row].tolist()[: num_draft - 1], topk)
        last_child = {}
        for node, above in enumerate(parent):
            retrieve_index[row, node] = row * num_draft + node
            if above >= 0:
                links = retrieve_next_sibling if above in last_child else retrieve_next_token
                links[row, last_child.get(above, above)] = node
                last_child[above] = node
        for node in range(num_draft):
            prefix = length if with_prefix else 0
            tree_row = mask[start + prefix : start + prefix + num_draft]
            tree_row[:] = False
            tree_row[0] = True
            depth_of_node, at = 0, node
            while at > 0:
                tree_row[at] = True
                depth_of_node, at = depth_of_node + 1, parent[at]
            flat_positions[row * num_draft + node] = length + depth_of_node
            start += prefix + num_draft


def verify_greedy(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    target_predict,
):
    """Follow the target's argmax down each tree; write accepted flat indices, the tokens after them and the counts."""
    target = target_predict.reshape(-1)
    for row in range(candidates.shape[0]):
        node, accepted = 0, 0
        while True:
            flat = int(retrieve_index[row, node])
            accept_index[row, accepted] = flat
            predicts[flat] = target[flat]
            if accepted == accept_index.shape[1] - 1:
                break
            child = int(retrieve_next_token[row, node])
            while child >= 0 and int(candidates[row, child]) != int(target[flat]):
                child = int(retrieve_next_sibling[row, child])
            if child < 0:
                break
            node, accepted = child, accepted + 1
        accept_token_num[row] = accepted


def verify_tree_greedy_func(predicts, accept_index, accept_token_num, candidates, *args, **kwargs):
    """The same under the name and with the spellings of its callers."""
    names = ("index", "next_token", "next_sibling")
    links = list(args[:3]) or [
        kwargs[f"retrieve_{name}" if f"retrieve_{name}" in kwargs else f"retrive_{name}"] for name in names
    ]
    target = args[3] if len(args) > 3 else kwargs["target_predict"]
    verify_greedy(predicts, accept_index, accept_token_num, candidates, *links, target)
    return predicts, accept_index, accept_token_num
