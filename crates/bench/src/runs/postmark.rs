//! PostMark (SoupFS Fig. 10).

use super::reading::{self, Compared};
use crate::field::Field;
use crate::plan::Plan;
use crate::report::{Better, Found, Run, Shape};
use crate::runner::rounds;
use crate::target::Result;
use crate::workloads::postmark::{CHART, Postmark};

/// As in the paper.
const TRANSACTIONS: u64 = 1_000_000;
/// Files are few and small, but what was removed is free only once that is persisted.
const LEN: u64 = 1 << 30;

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let field = Field::new(plan, LEN)?;
    let transactions = plan.scaled(TRANSACTIONS);
    let measured = rounds(plan, &field, "postmark", &Postmark { transactions })?;
    let mut run = Run::new(
        "postmark",
        "PostMark: small files of a mail server, one thread",
    );
    run.base = field.base(plan);
    let chart = measured.chart(CHART, "PostMark", "what", Shape::Bars, Better::More);
    run.charts = vec![chart.like("SoupFS Fig. 10")];
    let compared = Compared::new(&run, "PostMark");
    let ratio = compared.first();
    run.checks = vec![reading::check(
        "SoupFS Fig. 10: SoupFS outperforms the others by about 50 %.",
        compared.better(),
        ratio.map_or(String::new(), |ratio| {
            let ratio = reading::told(&ratio);
            format!("{ratio} times the transactions of {}.", run.base)
        }),
        "Much of a transaction is copying data, which all do alike.",
    )];
    run.notes = vec![
        format!(
            "500 files of 500 to 9770 bytes; up to {transactions} transactions a round, or as many as fit into \
             {} ms: read all or \
             append, then create or delete, even chances; 4 KiB at a time",
            plan.window.as_millis()
        ),
        "making the files before and removing them after is not timed".into(),
    ];
    Ok((run, field.peers()))
}
