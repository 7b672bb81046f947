//! The counters tell what was asked of the device.

use std::sync::Arc;

use block::{Buffer, Disk, Memory, Stats, Wave};

use crate::common::backends;

#[test]
fn counters_tell_ios_bytes_and_flushes() {
    for backend in backends(1 << 20) {
        let disk = Disk::new(backend.device);
        disk.write(0, vec![Buffer::zeroed(512), Buffer::zeroed(1024)])
            .expect("no fault");
        disk.read(512, vec![Buffer::zeroed(512)]).expect("no fault");
        disk.flush().expect("no fault");
        disk.zero(4096, 4096).expect("this host can");
        let stats = Stats {
            in_flight_max: 0,
            ..disk.stats()
        };
        let expected = Stats {
            reads: 1,
            writes: 1,
            flushes: 1,
            range_calls: 1,
            bytes_read: 512,
            bytes_written: 1536,
            ..Stats::default()
        };
        assert_eq!(stats, expected);
        assert_eq!(stats.ios(), 3);
    }
}

#[test]
fn a_wave_is_one_flush_and_a_write_for_each_run_of_neighbours() {
    for backend in backends(1 << 20) {
        let disk = Disk::new(backend.device);
        let mut wave = Wave::new();
        for at in [0, 512, 1024, 8192, 65536] {
            wave.write(at, Buffer::zeroed(512));
        }
        disk.commit(wave).expect("no fault");
        let before = disk.stats();
        assert_eq!((before.writes, before.flushes), (3, 1));
        // What a small commit costs: one write, one flush.
        let mut wave = Wave::new();
        wave.write(8192, Buffer::zeroed(8192));
        disk.commit(wave).expect("no fault");
        let commit = disk.stats().since(&before);
        assert_eq!((commit.ios(), commit.bytes_written), (2, 8192));
        disk.commit(Wave::new()).expect("no fault");
        assert_eq!(disk.stats().since(&before).ios(), 3);
    }
}

#[test]
fn requests_in_flight_are_counted() {
    for backend in backends(1 << 20) {
        let is_memory = backend.file.is_none();
        let disk = Disk::new(backend.device);
        let write = |i: u64| disk.submit_write(4096 * i, vec![Buffer::zeroed(4096)]);
        let tickets: Vec<_> = (0..64).map(write).collect();
        for ticket in tickets {
            ticket.wait().expect("no fault");
        }
        let stats = disk.stats();
        assert_eq!((stats.in_flight, stats.writes), (0, 64));
        // Those that take completions only while they are driven have all of them in flight.
        let driven = disk.info().how.ends_with("io_uring");
        let max = if driven { 64 } else { 1 };
        assert!(stats.in_flight_max >= max, "{stats:?}");
        assert!(!is_memory || stats.in_flight_max == 1, "{stats:?}");
    }
}

#[test]
fn a_range_beyond_the_device_is_a_mistake() {
    let disk = Disk::new(Arc::new(Memory::new(4096)));
    for (at, len) in [(4096, 512), (3584, 1024), (u64::MAX - 511, 512), (100, 512)] {
        let read = || disk.read(at, vec![Buffer::zeroed(len)]);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
        assert!(outcome.is_err(), "{len} bytes at {at}");
    }
}
