//! The judges can fail. The whole table is `docs/crash-mutants.md`, which
//! `tureen explore --mutants` makes.

mod common;

use common::left_out_is_noticed;
use explorer::engines::usual;
use pmem::Domain;

#[test]
fn leaving_out_flushes_fences_or_orders_is_noticed() {
    left_out_is_noticed((usual(), "delayed"), Domain::Line, ("", ""), 40);
}

/// There a fence covers what any thread has flushed (M12).
#[test]
fn leaving_them_out_is_noticed_on_a_disk() {
    left_out_is_noticed((usual(), "delayed"), Domain::Page, ("", ""), 40);
}

#[test]
fn leaving_them_out_of_requests_that_are_durable_when_they_return_is_noticed() {
    left_out_is_noticed((usual(), "strong"), Domain::Line, ("", ""), 40);
}

#[test]
fn leaving_them_out_of_these_is_noticed_on_a_disk() {
    left_out_is_noticed((usual(), "strong"), Domain::Page, ("", ""), 30);
}
