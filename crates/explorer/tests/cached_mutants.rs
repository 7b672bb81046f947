//! Of a cache each flush, each fence and each order of its memory, and each barrier of the disk
//! behind it, is left out by itself: some workload objects, or there is a reason why nobody need.

mod common;

use common::left_out_is_noticed;
use explorer::engines::ffs::cached::ENGINE;
use pmem::Domain;

#[test]
fn leaving_out_flushes_fences_orders_or_barriers_of_a_cache_is_noticed() {
    left_out_is_noticed((&ENGINE, "any"), Domain::Line, ("", ""), 40);
}

/// All of a commit, with the flushes of what is written around the processor's cache, which `line`
/// does not have. What became of the rest, which takes long: docs/testing.md.
#[test]
fn leaving_out_parts_of_a_commit_is_noticed_in_domain_page() {
    left_out_is_noticed((&ENGINE, "any"), Domain::Page, ("cache-0", "commit::"), 15);
}
