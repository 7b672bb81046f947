//! Of a cache each flush, each fence and each order of its memory, and each barrier of the disk
//! behind it, is left out by itself: some workload objects, or there is a reason why nobody need.

mod common;

use common::left_out_is_noticed;
use explorer::engines::ffs::cached::ENGINE;
use pmem::Domain;

#[test]
fn leaving_out_flushes_fences_orders_or_barriers_of_a_cache_is_noticed() {
    left_out_is_noticed(&ENGINE, Domain::Line, 40);
}
