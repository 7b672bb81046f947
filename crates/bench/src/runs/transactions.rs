//! How often transactions of memory abort in mode `strong`, and what requests do then (HTMFS Table
//! 2 and, for one block that all threads write, Table 4): counts, by the processor's transactions
//! if it has any and by software ones. Nothing is timed.
//!
//! Without a transaction a request falls back to a word that is stored by itself, if that is all
//! it changes on the medium, or to the journal; and requests that wait at the same time share one
//! commit. So of each kind of request all ways together are its requests, and no fall-back is left
//! out.

use std::sync::{Arc, Barrier};

use pmem::transaction::{Aborts, Hardware, Software, Transactions};
use pmem::{Domain, Stats};
use soupfs::{Mode, MountOptions, Node, SoupFs};
use vfs::{FileSystem, NewKind, NewNode, SystemClock};

use super::claims;
use crate::plan::Plan;
use crate::report::{Cell, Check, Run, Table};
use crate::target::{Result, Setup};

/// Requests of a thread.
const COUNT: u64 = 20_000;
const BLOCK: u64 = 4096;
/// Blocks that a thread has for itself.
const BLOCKS: u64 = 16;

const TITLE: &str = "Transactions of memory, counted (HTMFS Tables 2 and 4)";
const ABORTS: &str = "aborts a request";
/// What the paper calls negligible: it has up to 0.303.
const FEW: f64 = 0.31;

/// What each request of a thread is, by the name that FxMark has for it.
const WORK: [(&str, Work); 5] = [
    ("DWAL: appends to private files", Work::Append),
    ("DWOL: overwrites in private files", Work::Private),
    (
        "DWOM: overwrites of private blocks of one file",
        Work::Apart,
    ),
    ("DWOH: overwrites of one block", Work::Same),
    ("MWCM: creates in one directory", Work::Create),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Append,
    Private,
    Apart,
    Same,
    Create,
}

/// The counts of each kind of request, by one thread and by as many as the plan has.
pub fn table(plan: &Plan) -> Result<Table> {
    let columns = [
        "transactions",
        "requests",
        "threads",
        "without a lock",
        "with locks",
        "one word",
        "journal",
        "in another's commit",
        ABORTS,
        "by conflict",
        "by capacity",
        "otherwise",
    ];
    let mut table = Table::new(TITLE, &columns);
    let mut all = vec![software()];
    all.extend(Hardware::detect().map(|hardware| Arc::new(hardware) as Arc<dyn Transactions>));
    let most = plan.threads.iter().copied().max().unwrap_or(1);
    for transactions in &all {
        for (name, work) in WORK {
            for threads in if most > 1 { vec![1, most] } else { vec![1] } {
                let (spent, requests) = spent(plan, transactions, work, threads)?;
                let aborts = spent.aborts_conflict + spent.aborts_capacity + spent.aborts_other;
                table.row([
                    transactions.name().into(),
                    name.into(),
                    (threads as u64).into(),
                    spent.commits_optimistic.into(),
                    spent.commits_transaction.into(),
                    spent.commits_word.into(),
                    spent.commits_log.into(),
                    requests.saturating_sub(commits(&spent)).into(),
                    (aborts as f64 / requests as f64).into(),
                    spent.aborts_conflict.into(),
                    spent.aborts_capacity.into(),
                    spent.aborts_other.into(),
                ]);
            }
        }
    }
    Ok(table)
}

/// Commits, whichever way.
fn commits(spent: &Stats) -> u64 {
    let locked = spent.commits_transaction + spent.commits_word + spent.commits_log;
    spent.commits_optimistic + locked
}

fn software() -> Arc<dyn Transactions> {
    Arc::new(Software::new(Software::LINES_MAX, Aborts::Never))
}

/// HTMFS's Table 2 beside the counts of requests that do not meet.
pub fn check(run: &Run) -> Check {
    let table = run.tables.iter().find(|table| table.title == TITLE);
    let counted = table.and_then(|table| {
        let column = table.columns.iter().position(|name| name == ABORTS)?;
        let apart = table.rows.iter().filter(|row| {
            let is = |work: &str| matches!(&row[1], Cell::Text(name) if name.starts_with(work));
            is("DWAL") || is("DWOL")
        });
        let aborts = apart.filter_map(|row| match row[column] {
            Cell::Number(aborts) => Some(aborts),
            _ => None,
        });
        aborts.reduce(f64::max)
    });
    claims::check(
        "HTMFS Table 2: transactions abort hardly ever, 0.3 times a request at most, where \
         requests do not meet.",
        counted.map(|most| most < FEW),
        format!(
            "At most {:.4} times a request of DWAL and DWOL.",
            counted.unwrap_or(0.0)
        ),
        "Counts of software transactions, and of the processor's where it has any.",
    )
}

fn new() -> NewNode<'static> {
    NewNode {
        kind: NewKind::File,
        perm: 0o600,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

/// What so many threads spend on their requests, and how many these are.
fn spent(
    plan: &Plan,
    transactions: &Arc<dyn Transactions>,
    work: Work,
    threads: usize,
) -> Result<(Stats, u64)> {
    let count = plan.scaled(COUNT).max(20);
    let setup = Setup {
        len: (32 << 20) + 2 * threads as u64 * count * BLOCK,
        domain: Domain::Cache,
        ..Setup::default()
    };
    let options = MountOptions {
        mode: Mode::Strong,
        transactions: Some(transactions.clone()),
        ..MountOptions::new(Arc::new(SystemClock))
    };
    let fs = SoupFs::mount(setup.anonymous()?, options)?;
    let files = (0..threads)
        .map(|thread| {
            let file = fs.create(&fs.root(), format!("of {thread}").as_bytes(), &new())?;
            fs.write(
                &file,
                0,
                &vec![1; (threads as u64 * BLOCKS * BLOCK) as usize],
            )?;
            Ok(file)
        })
        .collect::<Result<Vec<Node>>>()?;
    let before = fs.pool().stats();
    let begin = Barrier::new(threads);
    let run = |thread: usize| -> vfs::Result<()> {
        let data = [thread as u8; BLOCK as usize];
        begin.wait();
        for n in 0..count {
            let block = n % BLOCKS;
            let own = thread as u64 * BLOCKS + block;
            match work {
                Work::Append => {
                    fs.append(&files[thread], &data)?;
                }
                Work::Private => {
                    fs.write(&files[thread], block * BLOCK, &data)?;
                }
                Work::Apart => {
                    fs.write(&files[0], own * BLOCK, &data)?;
                }
                Work::Same => {
                    fs.write(&files[0], 0, &data)?;
                }
                Work::Create => {
                    let name = format!("{thread} {n}");
                    drop(fs.create(&fs.root(), name.as_bytes(), &new())?);
                }
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let run = &run;
        let spawned: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        let mut joined = spawned.into_iter().map(|thread| thread.join());
        joined.try_for_each(|ended| ended.expect("a thread does not panic"))
    })?;
    let spent = fs.pool().stats() - before;
    fs.unmount()?;
    Ok((spent, threads as u64 * count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Size;

    #[test]
    fn each_request_commits_in_one_way() {
        let plan = Plan {
            divide: 100,
            threads: vec![1, 2],
            ..Size::Full.plan()
        };
        let count = plan.scaled(COUNT);
        let transactions = software();
        for (name, work) in WORK {
            for threads in [1, 2] {
                let (spent, requests) = spent(&plan, &transactions, work, threads).expect(name);
                assert_eq!(requests, count * threads as u64);
                // Who waits for the same commit shares it: one of each thread, at most.
                let shared = requests - commits(&spent);
                let alone = spent.commits_optimistic;
                let groups = commits(&spent) - alone;
                let most = groups * (threads as u64 - 1);
                assert!(shared <= most, "{name}: {spent:?}");
                let overwrites = !matches!(work, Work::Append | Work::Create);
                assert_eq!(
                    spent.commits_optimistic > 0,
                    overwrites,
                    "{name}: {spent:?}"
                );
                if threads == 1 {
                    assert_eq!(spent.aborts_conflict, 0, "{name}: {spent:?}");
                }
            }
        }
    }
}
