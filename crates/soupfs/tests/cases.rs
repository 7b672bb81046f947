//! SoupFS under the cases that every engine must pass: in mode `delayed`, and in mode `strong` with
//! each way to commit.

mod common;

use common::Soup;
use pmem::Domain;
use pmem::transaction::Aborts;
use soupfs::Mode;

model::engine_cases!(Soup::default());

/// In mode `strong`.
fn strong(domain: Domain, transactions: Option<Aborts>) -> Soup {
    Soup {
        mode: Mode::Strong,
        domain,
        transactions,
        ..Soup::default()
    }
}

mod in_mode_strong {
    use super::*;

    mod line {
        use super::*;

        model::engine_cases!(strong(Domain::Line, None));
    }

    mod page {
        use super::*;

        model::engine_cases!(strong(Domain::Page, None));
    }

    mod cache {
        use super::*;

        model::engine_cases!(strong(Domain::Cache, None));
    }

    mod transactions {
        use super::*;

        model::engine_cases!(strong(Domain::Cache, Some(Aborts::Never)));
    }
}
