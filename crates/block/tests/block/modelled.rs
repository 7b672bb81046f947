//! The modelled disk: what takes how long.

use std::sync::Arc;

use block::{Buffer, Disk, Mechanics, Modelled, Wave};

const LEN: u64 = 64 << 20;
const TURN_NS: u64 = 60_000_000_000 / 7200;

fn modelled(cache_bytes: u64) -> (Arc<Modelled>, Disk) {
    let mechanics = Mechanics {
        cache_bytes,
        ..Mechanics::of_1999()
    };
    let device = Arc::new(Modelled::new(LEN, mechanics));
    (device.clone(), Disk::new(device))
}

/// Simulated time that something takes.
fn time(device: &Modelled, run: impl FnOnce()) -> u64 {
    let before = device.now_ns();
    run();
    device.now_ns() - before
}

fn write(disk: &Disk, at: u64, len: usize) {
    disk.write(at, vec![Buffer::zeroed(len)]).expect("no fault");
}

#[test]
fn a_track_takes_a_turn() {
    let (device, disk) = modelled(0);
    let track = 200 * 512;
    write(&disk, 0, 512);
    let time = time(&device, || write(&disk, track as u64, track));
    assert!((TURN_NS..2 * TURN_NS + 300_000).contains(&time), "{time}");
    assert!(device.busy_ns() <= device.now_ns());
}

#[test]
fn scattered_writes_take_longer_than_sequential_ones() {
    let (device, disk) = modelled(0);
    let at = |i: u64| (i * 7919 % 1000) * 65536;
    let scattered = time(&device, || (0..100).for_each(|i| write(&disk, at(i), 4096)));
    let sequential = time(&device, || write(&disk, 0, 100 * 4096));
    assert!(scattered > 8 * sequential, "{scattered} {sequential}");
}

#[test]
fn writes_in_flight_together_are_served_in_one_sweep() {
    let (device, disk) = modelled(0);
    let at = |i: u64| (i * 7919 % 1000) * 65536;
    let one_by_one = time(&device, || (0..100).for_each(|i| write(&disk, at(i), 4096)));
    let together = time(&device, || {
        let mut wave = Wave::new();
        (0..100).for_each(|i| wave.write(at(i), Buffer::zeroed(4096)));
        disk.commit(wave).expect("no fault");
    });
    assert!(together < one_by_one * 4 / 5, "{together} {one_by_one}");
}

#[test]
fn a_cache_answers_at_once_and_pays_at_the_flush_or_when_idle() {
    let (device, disk) = modelled(1 << 20);
    let burst = || (0..20).for_each(|i| write(&disk, i * 1_048_576, 4096));
    let cached = time(&device, burst);
    assert!(cached < 20 * 500_000, "{cached}");
    let flush = time(&device, || disk.flush().expect("no fault"));
    assert!(flush > 20 * 1_000_000, "{flush}");
    burst();
    device.advance(1_000_000_000);
    let idle = time(&device, || disk.flush().expect("no fault"));
    assert!(idle < 1_000_000, "{idle}");
    // More than it holds: the platters set the pace.
    let full = time(&device, || {
        (0..40).for_each(|i| write(&disk, i << 20, 65536))
    });
    assert!(full > 40 * 2_000_000, "{full}");
}

#[test]
fn time_that_passes_serves_what_is_in_flight() {
    let (device, disk) = modelled(0);
    let tickets = [0, 32 << 20].map(|at| disk.submit_write(at, vec![Buffer::zeroed(4096)]));
    assert_eq!(device.now_ns(), 0);
    assert!(!tickets[0].is_done());
    device.advance(1_000_000_000);
    assert!(tickets.iter().all(|ticket| ticket.is_done()));
    assert_eq!(device.now_ns(), 1_000_000_000);
    assert!(device.busy_ns() < 100_000_000);
}
