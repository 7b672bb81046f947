//! A tiny engine for tests: it publishes records, each by two waves, and knows what must be there.

use std::sync::Arc;

use block::record::Trace;
use block::{BlockError, Buffer, Disk, Recorder, Wave};

use crate::common::sectors;

/// Records that a device of [`LEN`] bytes has room for.
pub const RECORDS: u8 = 6;
pub const LEN: u64 = 512 * 64;

/// Where a part of a record is.
fn place(record: u8, part: u64) -> u64 {
    512 * (2 + u64::from(record) * 4 + part * 32)
}

/// Publishes the records from 1 on; marks what it was told to be durable. Each kind of call comes
/// up.
pub fn publish_all(disk: &Disk, recorder: Option<&Recorder>) -> Result<(), BlockError> {
    for record in 1..=RECORDS {
        publish(disk, record)?;
        if let Some(recorder) = recorder {
            recorder.mark(record.to_string());
        }
        let read = disk.read(0, vec![Buffer::zeroed(512)])?;
        assert_eq!(read[0][0], record);
    }
    Ok(())
}

fn publish(disk: &Disk, record: u8) -> Result<(), BlockError> {
    match record % 3 {
        0 => {
            let submit = |part| disk.submit_write(place(record, part), vec![sectors(&[record; 2])]);
            let tickets = [0, 1].map(submit);
            for ticket in tickets {
                ticket.wait()?;
            }
            disk.flush()?;
        }
        1 => {
            disk.allocate(place(record, 0), 1024)?;
            let mut wave = Wave::new();
            wave.write(place(record, 0), sectors(&[record; 2]));
            wave.write(place(record, 1), sectors(&[record; 2]));
            disk.commit(wave)?;
        }
        _ => {
            disk.zero(place(record, 0), 1024)?;
            let mut wave = Wave::new();
            wave.write(place(record, 0), sectors(&[record]));
            wave.write(place(record, 0) + 512, sectors(&[record]));
            disk.write(place(record, 1), vec![sectors(&[record; 2])])?;
            disk.submit_wave(wave).wait()?;
        }
    }
    let mut wave = Wave::new();
    wave.write(0, sectors(&[record]));
    disk.commit(wave).map(drop)
}

/// Whether an image holds the records that it must: those up to the one it points at, which is not
/// older than the last of which durability was promised.
pub fn is_right(image: &[u8], promised: u8) -> bool {
    let newest = image[0];
    let whole = |record| {
        [0, 1].iter().all(|&part| {
            let at = place(record, part) as usize;
            image[at..at + 1024].iter().all(|&byte| byte == record)
        })
    };
    (promised..=RECORDS).contains(&newest) && (1..=newest).all(whole)
}

/// The first crash state, by its token, that is not right.
pub fn first_wrong(trace: &Trace) -> Option<String> {
    for point in trace.points() {
        let promised = trace
            .marks(point)
            .last()
            .map_or(0, |mark| mark.parse().expect("a record"));
        let crash = trace.crash(point);
        for token in crash.states(200, 0) {
            let image = crash.image(token.state).expect("a state of this point");
            if !is_right(&image, promised) {
                return Some(token.to_string());
            }
        }
    }
    None
}

/// A disk over layers over a recorder over `device`.
pub fn recorded(
    device: Arc<dyn block::Device>,
    layers: impl FnOnce(Arc<dyn block::Device>) -> Arc<dyn block::Device>,
) -> (Disk, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::new(device));
    (Disk::new(layers(recorder.clone())), recorder)
}
