//! What a crash leaves of a disk that is being formatted.

use std::sync::Arc;

use block::{Disk, Memory, Recorder};
use ffs::{FormatOptions, format};

use crate::common::{format_options, memory, mount};

const MIB: u64 = 1 << 20;
/// Offset of the label.
const LABEL: usize = 1024 + 120;

/// A crash while a disk is formatted leaves the old file system, none or the new one; one behind
/// it the new one.
pub fn assert_each_crash_leaves_one() {
    let options = |label: &str, block_size| FormatOptions {
        label: label.to_owned(),
        block_size,
        zeroed: false,
        ..format_options()
    };
    let device = Arc::new(Memory::new(MIB));
    format(&Disk::new(device.clone()), &options("old", 2048)).expect("formatted");
    let old = device.contents();
    let recorder = Arc::new(Recorder::new(device.clone()));
    format(&Disk::new(recorder.clone()), &options("new", 1024)).expect("formatted");
    let new = device.contents();

    let trace = recorder.trace();
    let mut seen = [0; 3];
    let end = trace.events.len();
    let points = trace.points().into_iter();
    for token in points.flat_map(|point| trace.crash(point).states(200, 1)) {
        let image = trace.replay(token).expect("a state");
        let label = image[LABEL..LABEL + 3].to_vec();
        // The superblock ends here.
        let rest = image[2048..].to_vec();
        match mount(memory(image), true) {
            Err(_) => {
                assert!(token.point < end, "{token}: it is gone");
                seen[0] += 1;
            }
            Ok(_) if label == b"old" => {
                assert!(token.point < end, "{token}: the old one is there");
                assert!(rest == old[2048..], "{token}");
                seen[1] += 1;
            }
            Ok(_) => {
                assert!(label == b"new" && rest == new[2048..], "{token}");
                seen[2] += 1;
            }
        }
    }
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
}
