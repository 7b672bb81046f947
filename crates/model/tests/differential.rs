//! The model is equal to itself, and engines that are broken are caught.

mod broken;

use std::sync::Arc;

use broken::{Broken, Fault};
use model::differential::{self, Config};
use model::{Model, Options};
use vfs::Clock;

#[test]
fn the_model_equals_itself() {
    differential::check(
        Config {
            ops: 5000,
            ..Config::default()
        },
        0..20,
        &Model::on,
    );
}

#[test]
fn the_model_equals_itself_under_threads() {
    let config = Config {
        ops: 1500,
        threads: 4,
        ..Config::default()
    };
    differential::check(config, 0..8, &Model::on);
}

#[test]
fn sequences_do_something() {
    for threads in [1, 3] {
        let config = Config {
            threads,
            ops: 3000,
            ..Config::default()
        };
        let summary = differential::run(config, 7, &Model::on).expect("the model equals itself");
        let share = summary.succeeded * 100 / summary.ops;
        assert!(share > 30, "{share} % of the operations succeed");
        assert!(summary.names > 10, "{} names are left", summary.names);
    }
}

/// Some seed finds the fault; its token finds it again, and a few operations show it.
fn is_caught(fault: Fault) {
    let engine = |clock: Arc<dyn Clock>| Broken::new(Model::on(clock), fault);
    let config = Config {
        ops: 3000,
        ..Config::default()
    };
    let failure = (0..10)
        .find_map(|seed| differential::run(config, seed, &engine).err())
        .unwrap_or_else(|| panic!("{fault:?} was not caught"));
    assert!(failure.ops.len() <= 12, "{failure:?}");
    assert!(failure.token.starts_with("DIFF-"));
    let again = differential::replay(&failure.token, &engine).expect_err("the same fault");
    assert_eq!(again.what, failure.what);
    differential::replay(&failure.token, &Model::on).expect("the model has no fault");
}

#[test]
fn a_link_count_kept_when_a_rename_replaces_is_caught() {
    is_caught(Fault::LinkCountAfterReplace);
}

#[test]
fn old_data_shown_after_extending_is_caught() {
    is_caught(Fault::StaleAfterExtend);
}

#[test]
fn a_time_that_is_not_set_is_caught() {
    is_caught(Fault::UnlinkKeepsCtime);
}

#[test]
fn an_entry_left_out_of_a_listing_is_caught() {
    is_caught(Fault::ListingLacksLast);
}

#[test]
fn a_panic_is_caught() {
    is_caught(Fault::PanicsOnExchange);
}

#[test]
fn a_fault_is_caught_under_threads() {
    let engine = |clock: Arc<dyn Clock>| Broken::new(Model::on(clock), Fault::StaleAfterExtend);
    let config = Config {
        ops: 2000,
        threads: 3,
        ..Config::default()
    };
    let caught = (0..5).any(|seed| differential::run(config, seed, &engine).is_err());
    assert!(caught);
}

#[test]
fn a_full_file_system_is_caught() {
    let options = Options {
        capacity: Some(12),
        ..Options::default()
    };
    let engine = move |clock: Arc<dyn Clock>| Model::with_options(clock, options);
    differential::run(Config::default(), 1, &engine).expect_err("it runs out of space");
}
