"""Every parser of foreign bytes that is compiled, and the property tests that feed it; the one list that `make fuzz` goes by.

Each property test of the crates is in one of the two tables, by its file and its name: `PARSERS`, where it feeds bytes or messages
from elsewhere, or `OWN`, where it tests our own computations. `test_parser_list.py` fails where one is missing or gone,
and says what to add. A parser in Python has its target in a `fuzz/test_*.py` instead, which pytest finds by itself.
"""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

PARSERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "crates/agent/src/ring_tests.rs": (
        "records in memory that programs share, and events in them",
        (
            "any_bytes_are_an_event_or_none",
            "foreign_bytes_are_survived_and_later_records_are_read",
            "what_is_written_is_read_once_and_in_order",
        ),
    ),
    "crates/aggregator/src/coverage.rs": (
        "coverage of other nodes",
        ("foreign_bytes_cover_no_more_than_the_image", "the_union_of_runs_is_that_of_their_bytes"),
    ),
    "crates/augment/src/integrity/tests.rs": ("PNG and JPEG, to their ends", ("nothing_makes_it_panic",)),
    "crates/augment/src/tests.rs": (
        "images",
        ("any_operations_on_any_image_give_an_image", "damaged_images_are_images_or_broken"),
    ),
    "crates/catalog/src/layout/lustre/tests.rs": (
        "Lustre's layouts",
        (
            "damage_never_panics_and_never_grows",
            "noise_never_panics",
            "real_structures_cover_every_byte_once_in_every_mirror",
            "whatever_is_written_is_read_back",
        ),
    ),
    "crates/catalog/src/layout/tests.rs": (
        "layouts of the other file systems",
        ("damaged_texts_never_panic", "noise_never_panics"),
    ),
    "crates/collective_wire/src/tests.rs": (
        "messages of collective I/O",
        (
            "damaged_messages_are_messages_or_errors",
            "foreign_bytes_are_a_message_or_an_error",
            "foreign_coverage_lists_stay_in_the_image",
            "a_foreign_stream_holds_no_more_than_a_frame",
            "frames_are_found_however_the_stream_is_cut",
            "positions_count_the_bytes_of_the_window",
            "runs_are_read_as_they_were_written",
        ),
    ),
    "crates/collective/src/datatype/tests.rs": (
        "datatypes of other processes",
        (
            "a_datatype_is_read_as_it_was_written",
            "damaged_datatypes_do_no_harm",
            "every_constructor_agrees_with_a_list_of_bytes",
            "foreign_bytes_are_a_datatype_or_refused",
        ),
    ),
    "crates/collective/src/tests.rs": (
        "views and server maps of other processes",
        (
            "a_server_map_is_read_as_it_was_written",
            "a_view_agrees_with_a_list_of_bytes",
            "damaged_views_do_no_harm",
            "each_byte_of_a_hull_is_in_one_window_of_its_owner",
            "foreign_bytes_are_a_server_map_or_refused",
            "foreign_bytes_are_a_view_or_refused",
        ),
    ),
    "crates/coupling/src/address.rs": (
        "files with the address of a coupled name",
        ("any_text_is_an_address_file_or_none",),
    ),
    "crates/coupling/src/wire_tests.rs": (
        "messages of coupling",
        ("a_damaged_message_is_another_or_none", "any_bytes_are_a_message_or_none"),
    ),
    "crates/copy/src/sink/journal/tests.rs": (
        "journals of copies",
        (
            "a_journal_cut_anywhere_gives_the_records_before_the_cut",
            "any_bytes_are_read_without_harm",
            "damage_is_noticed_and_nothing_after_it_is_believed",
        ),
    ),
    "crates/copy/src/restripe/journal.rs": (
        "journals of restriping",
        (
            "a_group_is_found_until_it_is_done_and_a_torn_line_is_none",
            "damaged_journals_are_read",
        ),
    ),
    "crates/copy/src/restripe/stripes.rs": (
        "layouts of files that are restriped",
        ("any_bytes_are_some_layout_or_another",),
    ),
    "crates/copy/src/source/names.rs": (
        "lists of names",
        ("no_list_gives_a_path_out_of_the_root", "pieces_put_together_are_the_list"),
    ),
    "crates/lab/src/wire.rs": (
        "packets of the lab's probes",
        ("foreign_bytes_are_refused_without_panic", "a_header_is_read_as_written"),
    ),
    "crates/load/src/dedup/trace.rs": (
        "parts of deduplication profiles",
        ("damage_is_noticed", "foreign_bytes_are_an_error"),
    ),
    "crates/pfs/src/layout/tests.rs": (
        "layouts of emulated file systems",
        ("foreign_bytes_do_no_harm", "parts_agree_with_what_is_encoded"),
    ),
    "crates/protocol/src/streams/message.rs": (
        "messages of streams",
        ("messages_are_read_as_they_were_written", "arbitrary_bytes_never_make_the_reader_panic"),
    ),
    "crates/protocol/src/streams/tests.rs": (
        "messages of a peer that breaks the rules of streams",
        (
            "arbitrary_messages_violate_the_protocol_at_worst",
            "fuzz_damaged_messages_cause_an_error_or_nothing",
        ),
    ),
    "crates/protocol/tests/packets.rs": (
        "frames in packets, and packets of a peer that has the keys",
        (
            "damaged_frames_are_read_or_refused",
            "frames_that_are_written_are_read_back",
            "fuzz_a_hostile_peer_makes_a_connection_neither_panic_nor_keep_more_than_it_may",
            "random_bytes_are_read_or_refused_and_nothing_else",
        ),
    ),
    "crates/staging/src/request.rs": ("requests of the lab's staging", ("no_bytes_make_a_reader_panic",)),
    "crates/staging/tests/staging.rs": (
        "a server of the lab's staging",
        ("a_server_outlives_every_message",),
    ),
    "crates/server/src/rights.rs": ("paths of clients", ("no_path_leads_out_of_a_root",)),
    "crates/server/src/welcome.rs": ("hellos of clients", ("no_hello_gets_more_than_the_server_has",)),
    "crates/transport/src/control/pump/tests.rs": (
        "records and messages over TLS",
        ("messages_of_both_sorts_arrive_in_order_however_the_wire_cuts_them",),
    ),
    "crates/transport/src/link/store.rs": (
        "extents of messages",
        (
            "a_message_is_complete_in_whatever_order_its_bytes_come",
            "reads_beyond_a_message_leave_the_rest_alone",
        ),
    ),
    "crates/protocol/src/control_stream.rs": (
        "the control stream of the wide-area protocol",
        (
            "bytes_arrive_in_order_however_they_are_lost_late_or_sent_twice",
            "no_frame_makes_a_receiver_panic_or_hold_more_than_its_window",
        ),
    ),
    "crates/transport/src/control/frames.rs": (
        "frames of the TLS connection",
        ("frames_arrive_as_they_were_sent_however_their_bytes_are_cut", "no_bytes_make_the_decoder_panic"),
    ),
    "crates/transport/src/endpoint.rs": (
        "datagrams before a connection is known",
        ("whatever_comes_early_takes_bounded_memory",),
    ),
    "crates/remote_copy/src/entry.rs": (
        "entries of trees",
        ("answers_are_read_as_they_were_written", "no_bytes_make_a_reader_panic_or_take_memory"),
    ),
    "crates/transport/src/handshake/hello.rs": (
        "greetings",
        (
            "a_hello_that_was_damaged_is_read_or_refused_but_never_taken_for_more",
            "no_bytes_make_a_reader_panic",
        ),
    ),
    "crates/probe/src/counting.rs": (
        "trains of the probe, counted",
        ("no_bytes_make_the_reader_panic", "what_comes_in_any_order_is_counted_as_a_naive_count_has_it"),
    ),
    "crates/probe/src/packet.rs": (
        "packets of the probe",
        (
            "changed_bits_are_seen_wherever_they_are",
            "no_bytes_are_taken_for_a_packet",
            "packets_are_read_as_they_were_written",
            "what_was_cut_or_is_of_another_session_or_direction_is_not_taken",
        ),
    ),
    "crates/probe/src/messages.rs": (
        "messages of the probe",
        (
            "greetings_are_read_as_they_were_written",
            "no_bytes_make_a_reader_panic",
            "trains_are_read_as_they_were_written_and_bounded",
        ),
    ),
    "crates/proxy/src/destination.rs": (
        "destinations of the proxy",
        ("no_bytes_make_a_reader_panic", "offers_are_read_as_they_were_written"),
    ),
    "crates/proxy/src/address.rs": ("addresses in any notation", ("no_text_makes_the_reader_panic",)),
    "crates/proxy/src/rules/tests.rs": (
        "rules of the proxy",
        (
            "no_text_form_of_an_address_is_judged_otherwise_than_the_address",
            "no_text_form_of_an_ipv6_address_is_judged_otherwise",
            "no_text_makes_a_reader_panic",
            "only_a_rule_that_names_it_lets_a_special_address_through",
        ),
    ),
    "crates/proxy/src/engine/tests.rs": (
        "messages of a proxy's peer",
        ("fuzz_no_order_of_a_hostile_peer_s_messages_confuses_an_end",),
    ),
    "crates/probe/src/server_session.rs": (
        "messages of a probe's client",
        ("fuzz_no_order_of_messages_has_packets_counted_or_sent_before_the_address_is_shown",),
    ),
    "crates/proxy/src/server.rs": ("what asks for a connection", ("no_bytes_make_a_reader_panic",)),
    "crates/proxy/src/socks.rs": ("SOCKS", ("no_bytes_make_a_reader_panic",)),
    "crates/remote_copy/src/compression.rs": (
        "compressed contents",
        ("foreign_bytes_are_contents_or_malformed", "whatever_is_compressed_comes_back"),
    ),
    "crates/remote_copy/src/tree_messages.rs": (
        "requests for a server's directories, and its answers",
        (
            "no_path_leads_out_of_the_directory",
            "foreign_bytes_are_a_message_or_malformed",
            "what_is_answered_is_read_as_it_was_written",
            "what_is_asked_is_read_as_it_was_written",
        ),
    ),
    "crates/remote_copy/src/session.rs": (
        "messages between the ends of a copy",
        ("no_bytes_make_a_reader_panic",),
    ),
    "crates/transport/src/flow_limits.rs": (
        "rates, pauses and modes that a peer asks for",
        ("no_bytes_make_a_reader_panic",),
    ),
}
"""File -> what is parsed, and its property tests."""

OWN: dict[str, tuple[str, ...]] = {
    "crates/aggregator/src/auth.rs": ("any_other_version_is_refused_by_both_sides",),
    "crates/aggregator/src/room.rs": ("parts_never_overlap_and_all_comes_back",),
    "crates/collective/src/behind/tests.rs": ("what_was_acknowledged_is_in_the_file_once_all_have_settled",),
    "crates/aggregator/tests/state_machines.rs": (
        "a_read_has_what_was_acknowledged_before_it_and_writes_stay_in_order",
        "an_aggregator_that_was_cut_off_writes_nothing_behind_after_those_that_replace_it",
        "an_error_of_bytes_that_were_acknowledged_is_reported_once",
        "what_was_acknowledged_behind_survives_any_process",
        "a_process_that_keeps_its_nodes_runs_may_be_killed_and_others_left_out",
        "long_runs_stay_on_their_node_and_every_byte_is_where_its_rank_said",
        "a_write_that_hung_in_the_storage_is_an_error_and_never_comes_after_a_newer_one",
        "an_aggregator_that_was_cut_off_writes_nothing_after_those_that_replace_it",
        "processes_that_are_killed_again_and_again_lose_nothing_and_make_no_rank_wait_for_ever",
        "a_process_that_is_killed_at_any_moment_loses_nothing_and_no_rank_waits_for_ever",
        "an_error_of_the_storage_reaches_every_rank_and_the_next_operation_succeeds",
        "every_byte_is_written_where_its_rank_said_and_no_other_byte_is_touched",
        "every_rank_reads_its_bytes_and_learns_where_the_file_ends",
    ),
    "crates/aggregator/tests/windows.rs": (
        "an_operation_has_as_many_windows_in_work_as_fit_into_two_buffers_and_eight_at_most",
    ),
    "crates/aqm/tests/queue.rs": ("a_policer_passes_its_rate_and_a_bucket",),
    "crates/pacing/src/limiter.rs": ("a_wait_is_long_enough", "no_more_goes_than_the_limits_allow"),
    "crates/pacing/src/turns.rs": ("each_task_is_taken_once_within_the_limits_and_none_is_forgotten",),
    "crates/catalog/src/digest.rs": ("which_zeros_are_stored_and_how_bytes_are_cut_makes_no_difference",),
    "crates/catalog/src/layout/tests.rs": (
        "a_byte_is_where_dealing_out_blocks_puts_it",
        "objects_without_a_list_and_gaps_between_components_are_covered",
    ),
    "crates/catalog/tests/check.rs": ("a_check_names_exactly_what_differs",),
    "crates/catalog/tests/checksum.rs": ("each_object_is_summed_and_repaired_alone",),
    "crates/collective_client/src/memory_tests.rs": (
        "every_byte_is_packed_and_unpacked_where_the_model_says",
    ),
    "crates/coupling/src/directory_tests.rs": ("every_reader_sees_every_version_whatever_the_order",),
    "crates/coupling/src/slabs_tests.rs": ("every_unit_has_one_place",),
    "crates/coupling/src/region.rs": (
        "what_pieces_leave_uncovered_is_found_cell_by_cell",
        "what_two_boxes_share_is_copied_cell_by_cell",
    ),
    "crates/copy/src/local/direct.rs": ("any_range_arrives_as_it_is",),
    "crates/copy/src/plan.rs": (
        "missing_and_written_extents_make_up_the_file",
        "nothing_but_files_and_links_is_ever_replaced",
    ),
    "crates/copy/src/time.rs": (
        "nanoseconds_are_kept_both_ways",
        "times_are_in_the_order_of_their_nanoseconds",
    ),
    "crates/flowsim/src/programs/tests.rs": (
        "every_byte_is_counted_once_however_routes_change",
        "precision_only_moves_ends_by_as_much",
    ),
    "crates/flowsim/src/sharing/tests.rs": (
        "rates_kept_up_to_date_are_those_worked_out_from_scratch",
        "with_a_tolerance_every_resource_is_used_up_to_it_and_no_further",
    ),
    "crates/flowsim/tests/load.rs": (
        "d_mod_k_chooses_as_pfsim_does",
        "every_path_is_a_shortest_one_and_loads_are_what_paths_carry",
        "greedy_routing_is_that_over_listed_paths",
        "no_routing_beats_the_bound_and_its_weights_prove_it",
    ),
    "crates/flowsim/tests/mapping.rs": ("an_exchanged_mapping_fits_and_is_no_worse",),
    "crates/flowsim/tests/non_minimal.rs": (
        "every_path_joins_its_hosts_meets_no_node_twice_and_no_routing_beats_the_bound",
    ),
    "crates/lab/src/latency.rs": (
        "every_value_has_a_bucket_that_holds_it",
        "merging_is_counting_together",
        "quantiles_are_close_to_the_sorted_sample",
    ),
    "crates/lab/src/sequence.rs": ("agrees_with_the_definitions", "an_undisturbed_stream_is_clean"),
    "crates/load/src/chunking/tests.rs": (
        "chunks_do_not_depend_on_how_the_data_arrives",
        "chunks_of_fs_c_are_those_of_its_plain_loop",
        "matrices_find_the_marks_that_tables_find",
    ),
    "crates/load/src/dedup/index.rs": ("what_is_distinct_is_what_sets_say",),
    "crates/load/src/files/tests.rs": ("extents_cover_the_file_and_lie_where_their_object_does",),
    "crates/load/src/plan.rs": ("all_processes_together_deliver_each_unit_once",),
    "crates/load/src/progress.rs": ("it_knows_what_a_set_would_know",),
    "crates/load/src/stripes.rs": ("each_byte_of_a_range_is_in_one_run_of_its_target",),
    "crates/load/src/schedule/tests.rs": ("everything_is_read_once_whatever_the_rules",),
    "crates/pfs/src/model/tests.rs": ("as_a_simulation_in_small_steps",),
    "crates/protocol/src/ack_gaps.rs": ("what_is_allowed_at_a_time_is_allowed_then",),
    "crates/protocol/src/loss_recovery.rs": ("every_packet_is_decided_and_the_bytes_in_flight_add_up",),
    "crates/protocol/src/reassembly.rs": ("extents_arrive_complete_and_each_byte_once",),
    "crates/protocol/src/ranges.rs": ("it_behaves_as_a_set_of_numbers",),
    "crates/protocol/src/received.rs": ("each_number_is_new_once_and_the_bitmap_has_those_received",),
    "crates/protocol/src/streams/assembler.rs": ("bytes_are_ordered_whatever_the_order_of_their_chunks",),
    "crates/protocol/src/streams/tests.rs": ("streams_arrive_complete_whatever_the_order_of_messages",),
    "crates/staging/tests/staging.rs": ("any_set_of_files_arrives_complete_both_ways",),
    "crates/copy/src/part_set.rs": ("it_is_the_set_that_it_says_it_is",),
    "crates/remote_copy/src/external_sort.rs": (
        "what_was_put_comes_back_in_order_as_often_as_it_is_asked_for",
    ),
    "crates/proxy/src/address.rs": ("a_network_has_the_addresses_with_its_bits",),
    "crates/proxy/src/engine/tests.rs": (
        "each_connection_carries_its_own_bytes_in_order_and_ends_once_whatever_happens",
    ),
    "crates/proxy/src/tunnel.rs": (
        "what_a_program_says_arrives_in_order_with_its_end_whatever_each_call_takes",
    ),
    "crates/probe/src/train.rs": ("every_packet_leaves_once_and_never_before_it_is_due",),
    "crates/server/src/copies.rs": ("only_its_key_joins_a_copy_and_never_beyond_its_connections",),
    "crates/server/src/dispatch/tests.rs": (
        "no_order_of_clients_gets_a_user_more_than_its_places_or_another_s_copy",
    ),
    "crates/server/src/admission.rs": ("its_books_stay_right_whatever_comes",),
    "crates/transport/src/handshake/version.rs": ("the_version_taken_is_the_highest_that_both_speak",),
    "crates/wanpath/src/delay_line.rs": ("entries_leave_as_from_a_sorted_list",),
    "crates/wanpath/src/packet_buffer.rs": ("packets_keep_their_bytes_until_they_leave",),
    "crates/wanpath/tests/model.rs": (
        "it_agrees_with_the_link_in_virtual_time",
        "the_rate_is_kept_and_nothing_is_early",
    ),
    "crates/wansim/tests/recovery.rs": ("any_extents_arrive_complete_over_any_path",),
}
"""File -> property tests of our own computations."""

_BLOCK = re.compile(r"\bproptest!\s*([{(\[])")
_CLOSES = {"{": "}", "(": ")", "[": "]"}
_FUNCTION = re.compile(r"\bfn\s+(\w+)")
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.|[^\'\\])\'', re.DOTALL)


def property_tests(crates: Path = REPOSITORY / "crates") -> dict[str, set[str]]:
    """File, from the repository on -> the names of the property tests in it, as the sources have them."""
    found: dict[str, set[str]] = {}
    for path in sorted(crates.rglob("*.rs")):
        # Braces in comments and texts are none of the code's.
        code = _NO_CODE.sub('""', path.read_text(encoding="utf-8"))
        names = set()
        for block in _BLOCK.finditer(code):
            body = _inside(code, block.end(), block[1])
            within = [m[1] for m in _FUNCTION.finditer(body)]
            # Used as a statement, it belongs to the function around it.
            names |= set(within or [m[1] for m in _FUNCTION.finditer(code[: block.start()])][-1:])
        if names:
            found[path.relative_to(crates.parent).as_posix()] = names
    return found


def _inside(code: str, start: int, opening: str) -> str:
    depth, closing = 1, _CLOSES[opening]
    for at in range(start, len(code)):
        depth += (code[at] == opening) - (code[at] == closing)
        if depth == 0:
            return code[start:at]
    return code[start:]
