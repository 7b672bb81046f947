//! The model against the kernel: tmpfs passes the same cases, and does in random sequences what
//! the model does.

mod host;

use host::{Host, unusable};
use model::differential::{self, Config};
use model::{Engine, cases};

/// Run `test`, or say why the host cannot be used.
fn on_host(test: impl FnOnce()) {
    match unusable() {
        Some(reason) => testing::skip!(reason),
        None => test(),
    }
}

#[test]
fn the_kernel_and_the_model_agree() {
    on_host(|| {
        let config = Config {
            ops: 3000,
            ..Config::default()
        };
        differential::check(config, 0..12, &Host);
    });
}

#[test]
fn the_kernel_and_the_model_agree_under_threads() {
    on_host(|| {
        let config = Config {
            ops: 1000,
            threads: 3,
            ..Config::default()
        };
        differential::check(config, 0..4, &Host);
    });
}

macro_rules! host_cases {
    ($engine:expr; $($module:ident { $($case:ident)* })*) => {
        $(mod $module {
            use super::*;
            $(#[test]
            fn $case() {
                on_host(|| run(&$engine, cases::$module::$case));
            })*
        })*
    };
}

fn run<E: Engine>(engine: &E, case: fn(&cases::Bed<'_, E>)) {
    cases::run(engine, case);
}

model::with_cases!([host_cases], Host);
