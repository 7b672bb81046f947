//! SoupFS beside the reference file system, in long random sequences.

mod common;

use common::Soup;
use model::differential::{Config, check, check_shared};
use pmem::transaction::Aborts;
use pmem::{Abort, Domain};
use soupfs::Mode;

#[test]
fn it_equals_the_model_with_the_persister_at_its_own_pace() {
    check(Config::default(), 0..40, &Soup::default());
}

#[test]
fn it_equals_the_model_when_nothing_is_persisted_but_on_demand() {
    check(
        Config::default(),
        1000..1040,
        &Soup {
            manual: true,
            ..Soup::default()
        },
    );
}

#[test]
fn it_equals_the_model_when_everything_is_persisted_at_once() {
    let engine = Soup {
        mode: Mode::Sync,
        manual: true,
        ..Soup::default()
    };
    check(
        Config {
            ops: 1000,
            ..Config::default()
        },
        2000..2020,
        &engine,
    );
}

/// What mode `strong` commits by: where, and which software transactions abort if it has any.
const STRONG: [(Domain, Option<Aborts>); 5] = [
    (Domain::Line, None),
    (Domain::Page, None),
    (Domain::Cache, None),
    (Domain::Cache, Some(Aborts::Never)),
    (Domain::Cache, Some(Aborts::Optimistic(Abort::Conflict))),
];

#[test]
fn it_equals_the_model_in_mode_strong() {
    for (i, (domain, transactions)) in STRONG.into_iter().enumerate() {
        let first = 100 * i as u64;
        let engine = |manual| Soup {
            mode: Mode::Strong,
            domain,
            transactions,
            manual,
            ..Soup::default()
        };
        for (manual, seeds) in [(true, 6000..6012), (false, 7000..7006)] {
            let seeds = seeds.start + first..seeds.end + first;
            check(Config::default(), seeds, &engine(manual));
        }
        let threads = Config {
            threads: 3,
            ..Config::default()
        };
        check(threads, 8000 + first..8006 + first, &engine(false));
    }
}

#[test]
fn it_equals_the_model_in_every_domain() {
    for domain in [Domain::Cache, Domain::Page] {
        check(
            Config::default(),
            3000..3010,
            &Soup {
                domain,
                ..Soup::default()
            },
        );
    }
}

#[test]
fn it_equals_the_model_with_further_persisters() {
    for manual in [false, true] {
        let engine = Soup {
            persisters: 3,
            manual,
            ..Soup::default()
        };
        check(Config::default(), 5000..5010, &engine);
    }
}

#[test]
fn it_equals_the_model_under_several_threads() {
    check(
        Config {
            threads: 3,
            ..Config::default()
        },
        4000..4020,
        &Soup::default(),
    );
}

#[test]
fn what_threads_do_with_names_that_they_share_is_explained_by_some_order() {
    for mode in [Mode::Delayed, Mode::Sync, Mode::Strong] {
        let engine = Soup {
            mode,
            ..Soup::default()
        };
        check_shared(0..8000, &engine);
    }
}
