//! Families of workloads. A workload is a family's name and a number; the same in every version
//! that has the same tables.

mod ace;
mod cached;
mod carried;
mod clash;
mod damaged;
mod edges;
mod extended;
mod far;
mod inherited;
mod long;
mod mkfs;
mod nospace;
mod random;
mod reclaim;
mod regions;
mod reused;
mod search;
mod served;
mod short;
mod situations;
mod snapshots;
mod strict;
mod tangle;
mod tight;
mod whole;

use crate::op::Op;
use crate::tree::Flaw;
use crate::workload::Workload;
use clash::clashing;
use std::sync::LazyLock;
use tight::{crowded, tight};

pub use short::{single_number, singles};
pub use situations::script_number;

/// Workloads of one kind.
#[derive(Clone, Copy)]
pub struct Family {
    /// Its name, the head of its workloads' names.
    pub name: &'static str,
    /// What it is, for people.
    pub about: &'static str,
    /// How many there are; endless if `None`.
    pub size: Option<u64>,
    /// States that each run judges at least, unless there is nothing to explore in it. One that
    /// judges fewer explores nothing any more, and is a failure.
    pub least: u64,
    /// Whether it is part of an exploration that names no family.
    pub usual: bool,
    /// The engines on which alone its workloads lead somewhere; none: they do on every one.
    pub only_on: &'static [&'static str],
    make: fn(u64) -> Result<Workload, Flaw>,
}

/// See [`Family::least`]: before and after each of two steps something is found.
const LEAST: u64 = 4;
/// Make the numbers of a family come in an order that is all over it: coprime to every size.
const STRIDE: u64 = 1_000_003;

/// All families. To count their workloads takes as long as many a workload, so that is done once.
static FAMILIES: LazyLock<Vec<Family>> = LazyLock::new(all);

/// All families.
pub fn families() -> Vec<Family> {
    FAMILIES.clone()
}

fn all() -> Vec<Family> {
    let family = |name, about, size, make| Family {
        name,
        about,
        size,
        least: LEAST,
        usual: true,
        only_on: &[],
        make,
    };
    // What another engine lacks, or has no image of.
    let own = |family| Family {
        only_on: &["soupfs"],
        ..family
    };
    let ext2 = |family| Family {
        only_on: &["ext2"],
        ..family
    };
    let cached = |family| Family {
        only_on: &["ext2+cache"],
        ..family
    };
    let brief = |family| own(Family { least: 1, ..family });
    let clash = |name, size, make| {
        own(family(
            name,
            "the same, with names of one bucket",
            size,
            make,
        ))
    };
    let split = |name, size, make| Family {
        only_on: &["soupfs", "ext2"],
        ..family(
            name,
            "the same, with sweeps that are split, or waves that take what chance has",
            size,
            make,
        )
    };
    let full = |name, size, make| {
        let about = "the same, with callers that persist what is pending";
        family(name, about, size, make)
    };
    vec![
        family(
            "ace1",
            "ACE: one operation, with each of 5 ways to sync",
            Some(ace::ones()),
            |n| Ok(ace::one(n)),
        ),
        clash("ace1-clash", Some(ace::ones()), |n| {
            Ok(clashing(ace::one(n)))
        }),
        family("ace2", "ACE: two operations", Some(ace::twos()), |n| {
            Ok(ace::two(n))
        }),
        clash("ace2-clash", Some(ace::twos()), |n| {
            Ok(clashing(ace::two(n)))
        }),
        Family {
            usual: false,
            ..family(
                "ace2-syncs",
                "ACE: two operations, with each of 25 ways to sync",
                Some(ace::twos_with_syncs()),
                |n| Ok(ace::two_with_syncs(n)),
            )
        },
        family(
            "ace1x",
            "ACE with operations that it does not have: one of them",
            Some(extended::ones()),
            |n| Ok(extended::one(n)),
        ),
        family(
            "ace2x",
            "ACE with operations that it does not have: one before or behind any",
            Some(extended::twos()),
            |n| Ok(extended::two(n)),
        ),
        own(family(
            "mkfs",
            "mkfs, cut short",
            Some(mkfs::count()),
            mkfs::mkfs,
        )),
        brief(family(
            "damaged",
            "repairs of damaged clean images, cut short",
            Some(damaged::count()),
            |n| Ok(damaged::damaged(n)),
        )),
        own(family(
            "nospace1",
            "one operation, where an allocation fails; builds with faults only",
            Some(nospace::ones()),
            |n| Ok(nospace::one(n)),
        )),
        own(family(
            "nospace2",
            "two operations, where an allocation fails; builds with faults only",
            Some(nospace::twos()),
            |n| Ok(nospace::two(n)),
        )),
        split("ace1-tight", Some(ace::ones()), |n| Ok(tight(ace::one(n)))),
        split("ace2-tight", Some(ace::twos()), |n| Ok(tight(ace::two(n)))),
        split("ace2x-tight", Some(extended::twos()), |n| {
            Ok(tight(extended::two(n)))
        }),
        split("script-tight", Some(situations::script_count()), |n| {
            Ok(tight(situations::script(n)))
        }),
        split("tangle-tight", None, |n| Ok(tight(tangle::tangle(n)))),
        split("random-tight", None, |n| Ok(tight(random::random(n)))),
        full("ace2-crowded", Some(ace::twos()), |n| {
            Ok(crowded(ace::two(n)))
        }),
        full("tangle-crowded", None, |n| Ok(crowded(tangle::tangle(n)))),
        full("random-crowded", None, |n| Ok(crowded(random::random(n)))),
        Family {
            usual: false,
            ..family("ace3", "ACE: three operations", Some(ace::threes()), |n| {
                Ok(ace::three(n))
            })
        },
        family(
            "single",
            "every operation, in all its forms, with every way to sync",
            Some(short::singles()),
            |n| Ok(short::single(n)),
        ),
        family(
            "threaded",
            "the same, with each sync on a thread of its own",
            Some(short::singles()),
            |n| Ok(short::threaded(n)),
        ),
        own(family(
            "shared",
            "the same, with three persisters that share the flushing of each batch",
            Some(short::singles()),
            |n| Ok(short::shared(n)),
        )),
        family(
            "pair",
            "two of these, each with any way to sync",
            Some(short::pairs()),
            |n| Ok(short::pair(n)),
        ),
        family(
            "zeroed",
            "a range that reads as zeros is written again, with every way to sync",
            Some(short::zeroeds()),
            |n| Ok(short::zeroed(n)),
        ),
        family(
            "carried",
            "contents that a record has change, with several ways to sync",
            Some(carried::count()),
            |n| Ok(carried::carried(n)),
        ),
        brief(family(
            "failing",
            "the same, where one sync fails; domain page only",
            Some(short::failings()),
            |n| Ok(short::failing(n)),
        )),
        family(
            "script",
            "situations, with a sync at every position",
            Some(situations::script_count()),
            |n| Ok(situations::script(n)),
        ),
        family(
            "far",
            "files and directories that need indirect blocks, with a sync at every position",
            Some(far::count()),
            |n| Ok(far::far(n)),
        ),
        split("far-tight", Some(far::count()), |n| Ok(tight(far::far(n)))),
        ext2(family(
            "edges",
            "what needs one edge each of the graph of soft updates",
            Some(edges::count()),
            |n| Ok(edges::edges(n)),
        )),
        ext2(split("edges-tight", Some(edges::count()), |n| {
            Ok(tight(edges::edges(n)))
        })),
        ext2(family(
            "swaps",
            "names that change places, by soft updates",
            Some(edges::swaps_count()),
            |n| Ok(edges::swaps(n)),
        )),
        ext2(split("swaps-tight", Some(edges::swaps_count()), |n| {
            Ok(tight(edges::swaps(n)))
        })),
        ext2(family(
            "snapshots",
            "snapshots before and behind an operation",
            Some(snapshots::count()),
            |n| Ok(snapshots::snapshots(n)),
        )),
        ext2(split("snapshots-tight", Some(snapshots::count()), |n| {
            Ok(tight(snapshots::snapshots(n)))
        })),
        ext2(family(
            "snapshots-three",
            "three snapshots, with changes between, removed in each order",
            Some(snapshots::threes()),
            |n| Ok(snapshots::three(n)),
        )),
        ext2(split(
            "snapshots-three-tight",
            Some(snapshots::threes()),
            |n| Ok(tight(snapshots::three(n))),
        )),
        ext2(family(
            "snapshots-random",
            "random sequences with snapshots anywhere",
            None,
            |n| Ok(snapshots::anywhere(n)),
        )),
        ext2(split("snapshots-random-tight", None, |n| {
            Ok(tight(snapshots::anywhere(n)))
        })),
        ext2(family(
            "served",
            "what a kill left is served at once, with the reclaim between the operations",
            None,
            |n| Ok(served::served(n)),
        )),
        ext2(split("served-tight", None, |n| {
            Ok(tight(served::served(n)))
        })),
        clash("script-clash", Some(situations::script_count()), |n| {
            Ok(clashing(situations::script(n)))
        }),
        own(family(
            "both",
            "two operations on two threads at once",
            Some(situations::both_count()),
            |n| Ok(situations::both(n)),
        )),
        clash("both-clash", Some(situations::both_count()), |n| {
            Ok(clashing(situations::both(n)))
        }),
        own(family(
            "full",
            "on a nearly full image",
            None,
            situations::full,
        )),
        ext2(family(
            "full-blocks",
            "on a nearly full disk, where frees are pending",
            None,
            situations::full_of_blocks,
        )),
        family("growth", "directories that grow", None, |n| {
            Ok(long::growth(n))
        }),
        family("churn", "directories whose names all change", None, |n| {
            Ok(long::churn(n))
        }),
        clash("growth-clash", None, |n| Ok(clashing(long::growth(n)))),
        clash("churn-clash", None, |n| Ok(clashing(long::churn(n)))),
        family(
            "wrap",
            "hundreds of commits, so that the journal wraps",
            Some(long::WRAPS),
            |n| Ok(long::wrap(n)),
        ),
        family(
            "chain",
            "chains of fresh directories",
            Some(long::CHAINS),
            |n| Ok(long::chain(n)),
        ),
        family("tangle", "tangles of few names", None, |n| {
            Ok(tangle::tangle(n))
        }),
        clash("tangle-clash", None, |n| Ok(clashing(tangle::tangle(n)))),
        family("random", "random sequences", None, |n| {
            Ok(random::random(n))
        }),
        clash("random-clash", None, |n| Ok(clashing(random::random(n)))),
        own(family(
            "life",
            "random sequences after a crash in one",
            None,
            random::second_life,
        )),
        own(family(
            "reclaim",
            "the same, with the search for leaks between the operations",
            None,
            reclaim::reclaim,
        )),
        own(family(
            "search",
            "one thing done between two of the smallest steps of the search for leaks",
            Some(search::COUNT),
            search::search,
        )),
        own(family(
            "regions",
            "on images of several regions, of which all but the last are nearly full",
            Some(regions::count()),
            |n| Ok(regions::script(n)),
        )),
        own(family(
            "regions-reclaim",
            "after a crash in these, with the search for leaks between the operations",
            None,
            regions::reclaim,
        )),
        own(family(
            "whole",
            "changes of bytes in mode strong, whatever the file held",
            Some(whole::count()),
            |n| Ok(whole::whole(n)),
        )),
        own(family(
            "strict",
            "requests that come by what no mode but strong does",
            Some(strict::count()),
            |n| Ok(strict::strict(n)),
        )),
        Family {
            usual: false,
            ..own(family(
                "transactions",
                "whole and strict, by software transactions in domain cache",
                Some(strict::by_transactions_count()),
                |n| Ok(strict::by_transactions(n)),
            ))
        },
        own(family(
            "reused",
            "what was removed, used again by the life after a kill",
            Some(reused::COUNT),
            |n| Ok(reused::reused(n)),
        )),
        own(family(
            "inherited",
            "what a kill left visible, in a next life that does hardly anything",
            Some(inherited::COUNT),
            |n| Ok(inherited::inherited(n)),
        )),
        cached(family(
            "cache",
            "a small cache before a disk: full, flushed, switched, detached",
            Some(cached::count()),
            |n| Ok(cached::cached(n)),
        )),
        cached(family(
            "cache-tight",
            "the same; new blocks go past the cache, and those that are read are kept",
            Some(cached::count()),
            |n| Ok(tight(cached::cached(n))),
        )),
        cached(family(
            "cache-killed",
            "a cache commits, or is told something, and the process killed before each fence",
            Some(cached::killed_count()),
            |n| Ok(cached::killed(n)),
        )),
        cached(family(
            "cache-threads",
            "other threads sync than tell the cache something, or read",
            Some(cached::threads_count()),
            |n| Ok(cached::threads(n)),
        )),
        cached(family(
            "cache-ring",
            "the ring of a cache begins again, in transactions of many blocks and of few",
            Some(cached::ring_count()),
            |n| Ok(cached::ring(n)),
        )),
    ]
}

impl Family {
    /// The workload of a number.
    ///
    /// # Errors
    /// It cannot be made, or there is none.
    pub fn workload(&self, number: u64) -> Result<Workload, Flaw> {
        if self.size.is_some_and(|size| number >= size) {
            return Err(format!("there is no {}-{number}", self.name));
        }
        (self.make)(number)
    }

    /// The number of the workload that comes at a position, from 0 on; `None` behind the last.
    /// `spread`: not in order, so that a part is a sample of all.
    pub fn number(&self, position: u64, spread: bool) -> Option<u64> {
        match self.size {
            None => Some(position),
            Some(size) if position >= size => None,
            Some(size) if spread => {
                Some((u128::from(position) * u128::from(STRIDE) % u128::from(size)) as u64)
            }
            Some(_) => Some(position),
        }
    }
}

/// The family of a name.
pub fn family(name: &str) -> Option<Family> {
    FAMILIES.iter().find(|family| family.name == name).copied()
}

/// The workload of a name, `FAMILY-NUMBER`.
///
/// # Errors
/// There is none.
pub fn by_name(name: &str) -> Result<Workload, Flaw> {
    let unknown = || format!("unknown workload {name:?}");
    let (head, number) = name.rsplit_once('-').ok_or_else(unknown)?;
    let number = number.parse().map_err(|_| unknown())?;
    family(head).ok_or_else(unknown)?.workload(number)
}

/// Every byte value that is used for contents once; never zero, nor the poison.
fn fill(number: usize) -> u8 {
    1 + (number % 190) as u8
}

fn s(path: &str) -> String {
    path.to_owned()
}

/// A write whose contents are chosen when the workload is put together.
fn write(path: &str, at: Option<u64>, len: usize) -> Op {
    Op::Write {
        path: s(path),
        at,
        len,
        fill: 0,
    }
}

/// The same of an extended attribute.
fn xattr(path: &str, name: u8, len: usize) -> Op {
    Op::SetXattr {
        path: s(path),
        name,
        len,
        fill: 0,
    }
}

/// Give every write of a sequence bytes of its own.
fn fill_in(mut ops: Vec<Op>) -> Vec<Op> {
    for (i, op) in ops.iter_mut().enumerate() {
        fill_one(op, i);
    }
    ops
}

fn fill_one(op: &mut Op, number: usize) {
    match op {
        Op::Write { fill: f, .. }
        | Op::WriteHeld { fill: f, .. }
        | Op::SetXattr { fill: f, .. }
        | Op::SetAcl { fill: f, .. }
        | Op::Inherit { fill: f, .. }
            if *f == 0 =>
        {
            *f = fill(number);
        }
        Op::Both(one, other) => {
            fill_one(one, number);
            fill_one(other, number + 95);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreading_reaches_every_number_once() {
        for family in families() {
            let Some(size) = family.size.filter(|&size| size < 100_000) else {
                continue;
            };
            let numbers: std::collections::BTreeSet<_> =
                (0..size).filter_map(|n| family.number(n, true)).collect();
            assert_eq!(numbers.len() as u64, size, "{}", family.name);
            assert_eq!(family.number(size, true), None);
        }
    }

    #[test]
    fn names_lead_to_the_workloads_that_have_them() {
        for family in families() {
            let workload = family.workload(3).expect(family.name);
            assert_eq!(workload.name, format!("{}-3", family.name));
            assert_eq!(by_name(&workload.name).expect("known").ops, workload.ops);
        }
        assert!(by_name("ace1-99999").is_err() && by_name("foo-1").is_err());
    }
}
