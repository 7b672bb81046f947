//! Clean images that are damaged, and whose repairs are cut short (see [`crate::damaged`]): each
//! kind of damage, to an image of our own and to some of random sequences behind it.

use super::random::random;
use super::{fill_in, s};
use crate::engine::Mode;
use crate::engines;
use crate::op::{HANDLES, Op};
use crate::workload::Workload;
use vfs::RenameMode;

/// Images that each kind of damage is done to.
const IMAGES: u64 = 6;

/// How many workloads [`damaged`] has.
pub fn count() -> u64 {
    engines::usual().damages() * IMAGES
}

/// What the image has for certain: a thing of each kind that can be damaged.
fn everything() -> Vec<Op> {
    let write = |path: &str, at: Option<u64>, len: usize| Op::Write {
        path: s(path),
        at,
        len,
        fill: 0,
    };
    let mut ops = vec![Op::Mkdir(s("Dir")), Op::Mkdir(s("Dir/Sub"))];
    for name in ["1-file", "2-file"] {
        ops.extend([Op::Create(s(name)), write(name, None, 9000)]);
    }
    ops.extend([
        Op::Symlink(s("link"), 3000),
        Op::Create(s("tagged")),
        Op::SetXattr {
            path: s("tagged"),
            name: b'a',
            len: 5000,
            fill: 0,
        },
        Op::Create(s("sparse")),
        write("sparse", Some(3 << 20), 5000),
        Op::Link(s("2-file"), s("Dir/hard")),
        Op::Create(s("Dir/") + &"long".repeat(40)),
        Op::Mknod(s("device"), 0x0103),
    ]);
    // More names than there are buckets: some follow others.
    ops.extend((0..36).map(|i| Op::Create(format!("Dir/{i}"))));
    ops.push(Op::Rename(
        s("Dir/7"),
        s("Dir/Sub/moved"),
        RenameMode::Replace,
    ));
    ops
}

/// A clean image with one kind of damage.
pub fn damaged(number: u64) -> Workload {
    let kinds = engines::usual().damages();
    let (kind, image) = (number % kinds, number / kinds);
    let mut ops = fill_in(everything());
    if image > 0 {
        ops.extend(random(image).ops);
        // What is held without a name keeps an image from being clean.
        ops.extend((0..HANDLES).map(Op::Close));
    }
    Workload {
        mode: Mode::DELAYED,
        len: 2 << 20,
        damage: Some(kind),
        ..Workload::new(format!("damaged-{number}"), ops)
    }
}
