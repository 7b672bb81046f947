//! A fault at every single request of a workload: it is told, nothing is written after it, and what
//! was promised is there.

use std::sync::Arc;

use block::{BlockError, Wave};
use block::{Buffer, Device, Disk, Fault, Faults, Memory, Op};
use rustix::io::Errno;

use crate::common::{backends, for_seeds, sectors};
use crate::publish::{LEN, first_wrong, publish_all, recorded};

const FAULTS: [Fault; 6] = [
    Fault::Fail(Errno::IO),
    Fault::Fail(Errno::NOSPC),
    Fault::FailDone(Errno::IO),
    Fault::Short(Errno::NOSPC),
    Fault::Short(Errno::IO),
    Fault::Vanish,
];

/// The kinds of the requests of a run without faults.
fn requests() -> Vec<Op> {
    let faults = Arc::new(Faults::new(Arc::new(Memory::new(LEN))));
    publish_all(&Disk::new(faults.clone()), None).expect("no fault");
    faults.seen()
}

/// Runs the workload with one fault, which it must tell of.
fn run(device: Arc<dyn Device>, number: usize, fault: Fault, order: Option<u64>) {
    let (disk, recorder) = {
        let mut layer = None;
        let (disk, recorder) = recorded(device, |inner| {
            let faults = Arc::new(Faults::new(inner));
            layer = Some(faults.clone());
            faults
        });
        let faults = layer.expect("the layer was made");
        faults.plan(number, fault);
        if let Some(seed) = order {
            faults.reorder(seed);
        }
        (disk, recorder)
    };
    let error = publish_all(&disk, Some(&recorder)).expect_err("the fault is told");
    check_poison(&disk, fault, &error);
    assert_eq!(first_wrong(&recorder.trace()), None, "{error}");
}

/// Whether a failed disk refuses what it must, with the first error.
fn check_poison(disk: &Disk, fault: Fault, error: &BlockError) {
    let poisons = !matches!(error.action.op, Op::Read | Op::Discard | Op::Allocate);
    assert_eq!(disk.poisoned().as_ref(), poisons.then_some(error));
    if !poisons {
        return;
    }
    let before = disk.stats();
    let mut wave = Wave::new();
    wave.write(0, sectors(&[9]));
    wave.write(4096, sectors(&[9]));
    let one = || vec![sectors(&[9])];
    let outcomes = [
        disk.commit(wave).map(drop),
        disk.write(0, one()).map(drop),
        disk.submit_write(0, one()).wait().map(drop),
        disk.zero(0, 512),
        disk.discard(0, 512),
        disk.flush(),
    ];
    assert!(
        outcomes
            .iter()
            .all(|outcome| outcome.as_ref() == Err(error))
    );
    assert_eq!(disk.stats().since(&before).ios(), 0);
    let read = disk.read(0, vec![Buffer::zeroed(512)]);
    assert_eq!(read.is_ok(), fault != Fault::Vanish);
}

#[test]
fn a_fault_at_any_request_is_told_and_nothing_promised_is_lost() {
    for (number, _) in requests().into_iter().enumerate() {
        for fault in FAULTS {
            run(Arc::new(Memory::new(LEN)), number, fault, None);
        }
    }
}

#[test]
fn a_fault_on_any_backend_and_in_any_order_is_told() {
    let count = requests().len() as u64;
    for_seeds(12, |seed| {
        for backend in backends(LEN) {
            let number = (seed * 7 + 3) % count;
            let fault = FAULTS[(seed % 6) as usize];
            let order = seed.is_multiple_of(2).then_some(seed);
            run(backend.device, number as usize, fault, order);
        }
    });
}

#[test]
fn who_shares_a_flush_that_fails_is_told() {
    let faults = Arc::new(Faults::new(Arc::new(Memory::new(LEN))));
    let disk = Disk::new(faults.clone());
    faults.reorder(1);
    faults.plan(1, Fault::FailDone(Errno::IO));
    // The first is in flight while the others are asked for: they share the second, which fails.
    let first = disk.submit_flush();
    let shared = [disk.submit_flush(), disk.submit_flush()];
    assert_eq!(first.wait().map(drop), Ok(()));
    let errors = shared.map(|ticket| ticket.wait().expect_err("it failed"));
    assert_eq!(errors[0], errors[1]);
    assert_eq!(disk.poisoned().as_ref(), Some(&errors[0]));
    assert_eq!(faults.seen(), [Op::Flush, Op::Flush]);
}

#[test]
fn a_flush_in_flight_when_a_write_fails_fails_too() {
    let faults = Arc::new(Faults::new(Arc::new(Memory::new(LEN))));
    let disk = Disk::new(faults.clone());
    faults.reorder(1);
    faults.plan(1, Fault::Fail(Errno::IO));
    let flush = disk.submit_flush();
    let error = disk
        .submit_write(0, vec![sectors(&[1])])
        .wait()
        .expect_err("it failed");
    assert_eq!(flush.wait().map(drop), Err(error));
}
