//! PostMark (SoupFS Fig. 10).

use super::claims::{self, Compared};
use crate::participants::Participants;
use crate::plan::Plan;
use crate::report::{Better, Found, Run, Shape};
use crate::runner::run_rounds;
use crate::target::Result;
use crate::workloads::postmark::{CHART, Postmark};

/// As in the paper.
const TRANSACTIONS: u64 = 1_000_000;
/// Files are few and small, but what was removed is free only once that is persisted.
const LEN: u64 = 1 << 30;

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let participants = Participants::new(plan, LEN)?;
    let transactions = plan.scaled(TRANSACTIONS);
    let measured = run_rounds(plan, &participants, "postmark", &Postmark { transactions })?;
    let mut run = Run::new(
        "postmark",
        "PostMark: small files of a mail server, one thread",
    );
    run.baseline = participants.baseline(plan);
    let chart = measured.chart(CHART, ("PostMark", "what"), Shape::Bars, Better::More);
    run.charts = vec![chart.like("SoupFS Fig. 10")];
    let ratio = Compared::new(&run, "PostMark").first();
    run.checks = vec![claims::about_others(
        "SoupFS Fig. 10: SoupFS outperforms EXT4, EXT4-DAX, PMFS and NOVA by about 50 %.",
        ratio.map_or(String::new(), |ratio| {
            let ratio = claims::with_interval(&ratio);
            format!(
                "Function calls in-process: {ratio} times the transactions of {}.",
                run.baseline
            )
        }),
        "Much of a transaction is copying data, which all do alike.",
    )];
    run.notes = vec![
        format!(
            "500 files of 500 to 9770 bytes; up to {transactions} transactions a round, or as many \
             as fit into \
             {} ms: read all or \
             append, then create or delete, even chances; 4 KiB at a time",
            plan.window.as_millis()
        ),
        "making the files before and removing them after is not timed".into(),
    ];
    Ok((run, participants.peers()))
}
