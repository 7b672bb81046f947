//! Data, then a pointer to it: what a pool is asked for, every crash of it, in each domain.

mod crash;

use std::io;
use std::sync::Arc;

use crash::every_crash;
use explorer::medium::Lines;
use explorer::trace::{Event, Trace};
use pmem::{Domain, Options, Pool, Syncer};

const POOL: usize = 8192;
/// Two lines of data.
const DATA: u64 = 4096;
const DATA_LEN: u64 = 128;
const POINTER: u64 = 1024;

fn recorded(domain: Domain, trace: &Arc<Trace>) -> Pool {
    let options = Options {
        domain: Some(domain),
        recorder: Some(trace.clone()),
        ..Options::default()
    };
    Pool::from_bytes(&[0; POOL], &options).expect("memory")
}

/// Whether every crash of a trace leaves the pointer only with its data: not before the step has
/// begun, and always once it has ended.
fn is_published_with_its_data(domain: Domain, trace: &Trace) -> bool {
    let events = trace.take().0;
    let medium = Lines::thorough(domain);
    let judged = every_crash(domain, medium, &[0; POOL], &events, |when, image| {
        let data = &image[DATA as usize..][..DATA_LEN as usize];
        let is_whole = data == [7; DATA_LEN as usize];
        match image[POINTER as usize] == 1 {
            true if when.begun == 0 || !is_whole => Err("a pointer to nothing".to_owned()),
            false if when.ended == 1 => Err("no pointer".to_owned()),
            _ => Ok(()),
        }
    });
    judged.is_ok()
}

/// How data is made durable before the pointer is stored.
#[derive(Clone, Copy)]
struct How {
    streaming: bool,
    flush: bool,
    fence: bool,
}

fn publish(domain: Domain, how: How) -> bool {
    let trace = Trace::new(&[]);
    let pool = recorded(domain, &trace);
    trace.mark(Event::Begin(1));
    let data = [7; DATA_LEN as usize];
    match how.streaming {
        true => pool.write_nt(DATA, &data),
        false => pool.write(DATA, &data),
    }
    if how.flush {
        pool.flush(DATA, DATA_LEN);
    }
    if how.fence {
        pool.fence().expect("a fence");
    }
    pool.store(POINTER, 1);
    pool.flush(POINTER, 8);
    pool.fence().expect("a fence");
    trace.mark(Event::End(1));
    is_published_with_its_data(domain, &trace)
}

#[test]
fn each_domain_asks_for_what_the_crash_model_says_and_no_more() {
    for streaming in [false, true] {
        for (flush, fence) in [(false, false), (false, true), (true, false), (true, true)] {
            for domain in [Domain::Line, Domain::Cache, Domain::Page] {
                let enough = match domain {
                    // M6; M7.
                    Domain::Line => fence && (flush || streaming),
                    // M9; M8.
                    Domain::Cache => fence || !streaming,
                    // M12; M11.
                    Domain::Page => fence && flush,
                };
                let how = How {
                    streaming,
                    flush,
                    fence,
                };
                let what = format!("{domain}: streaming {streaming}, {flush}, {fence}");
                assert_eq!(publish(domain, how), enough, "{what}");
            }
        }
    }
}

/// A disk whose first sync fails, and none after it.
struct FailsOnce(Arc<Trace>);

impl Syncer for FailsOnce {
    fn sync(&self, _: u64, _: u64, _: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        if self.0.with(0, |events| events.contains(&Event::Fail)) {
            return Ok(());
        }
        self.0.mark(Event::Fail);
        Err(io::Error::from_raw_os_error(5))
    }
}

#[test]
fn after_a_sync_that_failed_no_fence_is_good_and_going_on_would_be_seen() {
    let trace = Trace::new(&[]);
    let pool = recorded(Domain::Page, &trace).with_syncer(Arc::new(FailsOnce(trace.clone())));
    trace.mark(Event::Begin(1));
    pool.write(DATA, &[7; DATA_LEN as usize]);
    pool.flush(DATA, DATA_LEN);
    assert!(pool.fence().is_err());
    assert!(pool.fence().is_err(), "the pool is poisoned");
    // A caller that takes no notice.
    pool.store(POINTER, 1);
    pool.flush(POINTER, 8);
    assert!(pool.fence().is_err(), "the pool is poisoned");
    let is_fence = |event: &Event| matches!(event, Event::Fence { .. });
    trace.with(0, |events| {
        let failed = events.iter().position(|event| *event == Event::Fail);
        let since = &events[failed.expect("a sync that failed")..];
        assert!(!since.iter().any(is_fence), "{since:?}");
    });
    assert!(!is_published_with_its_data(Domain::Page, &trace));
}
