//! Random lives of a cache, each ended by a power cut or a kill at any store of the memory or
//! request of the disk. Of the two media, each as its rules admit and independent of the other, the
//! next life opens what a crash may leave, and finds each transaction whole or not at all.
//!
//! `TUREEN_SEEDS=1000 cargo test -p cache --test crash` runs more of them; a failure names its
//! seed, which `TUREEN_REPLAY=n` runs alone.

mod life;
mod world;

use cache::Kind;
use pmem::Domain;

use life::Script;
use world::World;

/// Of each world, how many lives end before the last one, which is judged to its end.
const LIVES: usize = 3;

/// Worlds in which an injected fault has to be noticed.
const FAULTY_MAX: u64 = 4000;

fn seeds(count: u64) -> Vec<u64> {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse().expect(name))
    };
    match number("TUREEN_REPLAY") {
        Some(seed) => vec![seed],
        None => (0..number("TUREEN_SEEDS").unwrap_or(count)).collect(),
    }
}

/// Runs worlds with each seed; says of the first that is wrong what and where.
fn explore(kind: Kind, domain: Domain, fault: Option<world::Fault>) -> Result<usize, String> {
    let mut crashes = 0;
    for seed in seeds(fault.map_or(400, |_| FAULTY_MAX)) {
        let mut world = World::new(kind, domain, seed, fault);
        for _ in 0..LIVES {
            let script = Script::random(&mut world);
            let result = world.live(&script);
            crashes += 1;
            result.map_err(|what| format!("{kind} in {domain}, TUREEN_REPLAY={seed}: {what}"))?;
        }
        let result = world.finish();
        result.map_err(|what| format!("{kind} in {domain}, TUREEN_REPLAY={seed}: {what}"))?;
    }
    Ok(crashes)
}

fn holds(kind: Kind, domain: Domain) {
    let crashes = explore(kind, domain, None);
    assert!(crashes.unwrap_or_else(|what| panic!("{what}")) > 0);
}

#[test]
fn spindle_in_line() {
    holds(Kind::Spindle, Domain::Line);
}

#[test]
fn spindle_in_cache() {
    holds(Kind::Spindle, Domain::Cache);
}

#[test]
fn tinca_in_line() {
    holds(Kind::Tinca, Domain::Line);
}

#[test]
fn tinca_in_cache() {
    holds(Kind::Tinca, Domain::Cache);
}

/// Each fence that the cache waits for is left out by turns: somebody notices.
#[test]
fn without_a_fence_of_a_commit_a_crash_is_noticed() {
    for kind in [Kind::Spindle, Kind::Tinca] {
        for nth in 0..3 {
            let fault = world::Fault::NoFence { nth, of: 3 };
            let noticed = explore(kind, Domain::Line, Some(fault));
            assert!(noticed.is_err(), "{kind}: fence {nth} of 3 is left out");
        }
    }
}

#[test]
fn without_flushes_of_the_disk_a_crash_is_noticed() {
    let noticed = explore(Kind::Spindle, Domain::Line, Some(world::Fault::NoDiskFlush));
    assert!(noticed.is_err());
}
