//! 4 KiB made durable: with a cache, and on SoupFS in domain `line`, each in-process and through
//! the mount.

use pmem::Domain;

use crate::participants::Participants;
use crate::plan::Plan;
use crate::report::{Better, Chart, Check, Peer, Run, Shape, above, short};
use crate::runner::run_rounds;
use crate::runs::claims;
use crate::sampler::{Sampler, Workload, figure};
use crate::target::{Result, Setup, Target, TargetSpec};
use crate::workloads::scattered;

const BLOCK: u64 = 4096;
const LEN: u64 = 256 << 20;
/// Blocks of the file.
const BLOCKS: u64 = 4096;
/// Overwrites of a round.
const COUNT: u64 = 2000;
/// No more times than this of the SoupFS mount.
const TIMES_MAX: f64 = 2.0;

const TITLE: &str = "Overwrite of 4 KiB and fsync, domain line";
const WHAT: &str = "overwrite+fsync";
/// Each beside SoupFS: in-process, and mounts.
const IN_PROCESS: &str = "ffs:cache=spindle,cache_mib=64";
const MOUNT: &str = "mount-ext2:cache=spindle,cache_mib=64,domain=line";

/// The chart, and who took part.
pub fn chart(plan: &Plan) -> Result<(Chart, Vec<Peer>)> {
    let tinca = |spec: &str| spec.replace("spindle", "tinca");
    let all = [
        "soupfs".to_owned(),
        IN_PROCESS.to_owned(),
        tinca(IN_PROCESS),
        "mount".to_owned(),
        MOUNT.to_owned(),
        tinca(MOUNT),
    ];
    let specs: std::result::Result<Vec<TargetSpec>, _> =
        all.iter().map(|spec| spec.parse()).collect();
    let setup = Setup {
        len: LEN,
        domain: Domain::Line,
        ..plan.setup()
    };
    let participants = Participants::of(plan, &specs?, &setup)?;
    let work = Overwrites {
        count: plan.scaled(COUNT).max(20),
        blocks: plan.scaled(BLOCKS).max(16),
    };
    let measured = run_rounds(plan, &participants, "4 KiB and fsync", &work)?;
    let shape = Shape::Bars;
    let chart = measured.chart(TITLE, (TITLE, "operation"), shape, Better::Less);
    Ok((chart, participants.peers()))
}

/// Blocks of a file that is there, overwritten in no order, each durable at return.
struct Overwrites {
    count: u64,
    blocks: u64,
}

impl Workload for Overwrites {
    type State = ();

    fn prepare<T: Target>(&self, target: &T) -> Result<()> {
        let (file, data) = (target.create(c"fsync")?, [0x5a; BLOCK as usize]);
        (0..self.blocks).try_for_each(|i| target.write_at(file, &data, i * BLOCK))?;
        target.close(file)?;
        target.sync()
    }

    fn round<T: Target>(&self, target: &T, _: &mut (), sampler: &mut Sampler<'_>) -> Result<()> {
        let (file, data) = (target.open(c"fsync", false)?, [0x5b; BLOCK as usize]);
        let count = self.count as usize;
        sampler.counted(figure(TITLE, WHAT), count, || {
            (0..self.count).try_for_each(|i| {
                target.write_at(file, &data, scattered(i, self.blocks) * BLOCK)?;
                target.fsync(file)
            })
        })?;
        target.close(file)
    }
}

/// Whether a mount with a cache stays within what was aimed at.
pub fn checks(run: &Run) -> Vec<Check> {
    let name = |spec: &str| spec.parse::<TargetSpec>().map(|spec| spec.name());
    let ratio = |own: &str, base: &str| {
        let (own, base) = (name(own).ok()?, name(base).ok()?);
        run.chart(TITLE)?.ratio(&own, &base, &WHAT.into())
    };
    let median = |own: &str, base: &str| ratio(own, base).map(|ratio| 1.0 / ratio.median());
    let said = |times: Option<f64>| times.map_or("-".into(), short);
    let mounts = ratio(MOUNT, "mount");
    vec![claims::check(
        "Aim: 4 KiB and fsync through the mount with a cache take no more than twice the SoupFS \
         mount's in domain line.",
        above([mounts], 1.0 / TIMES_MAX),
        format!(
            "Times the SoupFS mount's: {}; in-process, times SoupFS's: {}.",
            said(median(MOUNT, "mount")),
            said(median(IN_PROCESS, "soupfs"))
        ),
        "In-process the cache has three fences, where SoupFS has one, and a transaction has the \
         inode and the superblock in it; through the mount the requests of FUSE cost more than \
         either.",
    )]
}
