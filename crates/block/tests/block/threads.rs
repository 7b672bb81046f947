//! Many threads at one disk, and threads that go before their requests are complete.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use block::device::{Completion, Device, Info, Io, Request};
use block::{Buffer, Disk, Memory, Random, Ticket, Wave};

use crate::common::{backends, for_seeds, sectors};

const THREADS: u64 = 6;

/// What one thread does to its own sectors, every `THREADS`th one.
fn work(disk: &Disk, thread: u64, random: &mut Random) {
    let mut last = [0; 8];
    for _ in 0..60 {
        let i = random.below(8);
        let at = 512 * (i * THREADS + thread);
        let byte = random.number() as u8;
        match random.below(4) {
            0 => {
                let ticket = disk.submit_write(at, vec![sectors(&[byte])]);
                while !ticket.is_done() {
                    thread::yield_now();
                }
                ticket.wait().expect("no fault");
            }
            1 => drop(disk.write(at, vec![sectors(&[byte])]).expect("no fault")),
            2 => {
                let mut wave = Wave::new();
                wave.write(at, sectors(&[byte]));
                disk.commit(wave).expect("no fault");
            }
            _ => {
                let mut wave = Wave::new();
                wave.write(at, sectors(&[byte]));
                let beside = (i + 1) % 8;
                wave.write(512 * (beside * THREADS + thread), sectors(&[byte]));
                last[beside as usize] = byte;
                disk.submit_wave(wave).wait().expect("no fault");
            }
        }
        last[i as usize] = byte;
        let i = random.below(8);
        let at = 512 * (i * THREADS + thread);
        let read = disk.read(at, vec![Buffer::zeroed(512)]).expect("no fault");
        assert_eq!(read[0][0], last[i as usize]);
    }
}

#[test]
fn threads_at_one_disk_see_what_they_wrote_and_wake_up() {
    for_seeds(4, |seed| {
        for backend in backends(512 * 8 * THREADS) {
            let disk = Disk::new(backend.device);
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let disk = &disk;
                    let mut random = Random::new(seed * THREADS + thread);
                    scope.spawn(move || work(disk, thread, &mut random));
                }
            });
            let stats = disk.stats();
            assert_eq!(stats.in_flight, 0);
            assert_eq!(stats.bytes_read, THREADS * 60 * 512);
        }
    });
}

#[test]
fn commits_of_many_threads_share_flushes() {
    for backend in backends(512 * THREADS) {
        let disk = Disk::new(backend.device);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let disk = &disk;
                scope.spawn(move || {
                    for byte in 0..50 {
                        disk.write(512 * thread, vec![sectors(&[byte])])
                            .expect("no fault");
                        disk.flush().expect("no fault");
                    }
                });
            }
        });
        // How many are shared is the scheduler's choice; that none is lost is not.
        let flushes = disk.stats().flushes;
        assert!((50..=50 * THREADS).contains(&flushes), "{flushes}");
    }
}

#[test]
fn a_request_outlives_the_thread_that_submitted_it() {
    for backend in backends(1 << 20) {
        let disk = Disk::new(backend.device);
        let submit = |i: u64| -> Vec<Ticket> {
            let mut wave = Wave::new();
            wave.write(8192 * i, sectors(&[i as u8; 8]));
            vec![
                disk.submit_wave(wave),
                disk.submit_write(8192 * i + 4096, vec![sectors(&[i as u8; 8])]),
                disk.submit_flush(),
            ]
        };
        let tickets: Vec<_> = (0..32)
            .flat_map(|i| thread::scope(|s| s.spawn(|| submit(i)).join().expect("no panic")))
            .collect();
        for ticket in tickets {
            ticket.wait().expect("no fault");
        }
        let read = disk
            .read(0, vec![Buffer::zeroed(32 * 8192)])
            .expect("no fault");
        let right = |(i, sector): (usize, &[u8])| sector.iter().all(|&b| usize::from(b) == i / 16);
        assert!(read[0].chunks(512).enumerate().all(right));
    }
}

#[test]
fn a_disk_that_is_dropped_has_written_what_was_in_flight() {
    for backend in backends(1 << 20) {
        let disk = Disk::new(backend.device.clone());
        for i in 0..64 {
            // The outcome is lost with the ticket, the write is not.
            drop(disk.submit_write(4096 * i, vec![sectors(&[7; 8])]));
        }
        drop(disk);
        let disk = Disk::new(backend.device);
        let read = disk
            .read(0, vec![Buffer::zeroed(64 * 4096)])
            .expect("no fault");
        assert!(read[0].iter().all(|&byte| byte == 7));
    }
}

/// A device whose callers do their requests themselves, and tell of it. Such a request ends when
/// the test lets it.
struct Held {
    inner: Memory,
    /// What somebody does.
    told: Mutex<Sender<&'static str>>,
    go_on: Mutex<Receiver<()>>,
}

impl Held {
    fn tell(&self, what: &'static str) {
        let told = self.told.lock().expect("no panic");
        told.send(what).expect("the test listens");
    }
}

impl Device for Held {
    fn info(&self) -> &Info {
        Device::info(&self.inner)
    }

    fn submit(&self, ios: Vec<Io>) {
        self.inner.submit(ios);
    }

    fn delivered(&self) -> u64 {
        self.inner.delivered()
    }

    fn wait(&self, seen: u64) {
        self.tell("waits");
        self.inner.wait(seen);
    }

    fn notify(&self) {
        self.inner.notify();
    }

    fn execute(&self, request: Request) -> Completion {
        self.tell("does a request");
        let go_on = self.go_on.lock().expect("no panic");
        go_on.recv().expect("the test lets it");
        self.inner.execute(request)
    }
}

#[test]
fn who_drops_a_disk_is_told_when_another_thread_has_done_its_request() {
    let (told, does) = channel();
    let (go_on, may_go_on) = channel();
    let (dropped, is_dropped) = channel();
    let disk = Disk::new(Arc::new(Held {
        inner: Memory::new(4096),
        told: Mutex::new(told),
        go_on: Mutex::new(may_go_on),
    }));
    let other = disk.clone();
    let writes = thread::spawn(move || disk.write(0, vec![sectors(&[1])]).map(drop));
    assert_eq!(does.recv(), Ok("does a request"));
    let drops = thread::spawn(move || {
        drop(other);
        dropped.send(()).expect("the test waits");
    });
    assert_eq!(does.recv(), Ok("waits"));
    go_on.send(()).expect("it waits");
    let told = is_dropped.recv_timeout(Duration::from_secs(60));
    assert_eq!(told, Ok(()), "nobody has told it");
    writes.join().expect("no panic").expect("no fault");
    drops.join().expect("no panic");
}
