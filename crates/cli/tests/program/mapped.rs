//! Stores to mapped pages, of which the serving process hears nothing until the kernel writes them
//! back.
//!
//! It must be another process than this one: page faults hold locks of the process that they happen
//! in.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use testing::raw::MappedPage;

use crate::scene::Scene;

fn open(scene: &Scene, name: &str) -> File {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    options.open(scene.path(name)).expect("open")
}

fn find(file: &File, what: SeekFrom) -> Option<u64> {
    match rustix::fs::seek(file, what) {
        Ok(offset) => Some(offset),
        Err(rustix::io::Errno::NXIO) => None,
        Err(errno) => panic!("{errno}"),
    }
}

fn page(n: u64) -> u64 {
    n << 12
}

/// A file with data in page 2 alone, and pages 0, 3 and 40 stored to by a mapping.
fn mapped(scene: &Scene) -> (File, [MappedPage; 3]) {
    let file = open(scene, "mnt/file");
    file.write_all_at(&[1; 4096], page(2)).expect("write");
    file.set_len(page(100)).expect("extend");
    // One that is the first data, one behind data, and one alone.
    let mapped = [0, 3, 40].map(|n| {
        let mut mapped = MappedPage::of(&file, page(n)).expect("map");
        mapped.store(7);
        mapped
    });
    (file, mapped)
}

#[test]
fn data_that_was_stored_to_a_mapped_hole_is_found() {
    for options in ["rw", "threads=1"] {
        let scene = Scene::new();
        scene.must(&["mount", "disk.img", "mnt", "--create", "64M", "-o", options]);
        let (file, mut mapped) = mapped(&scene);
        let found = |what| find(&file, what);
        assert_eq!(found(SeekFrom::Hole(page(2))), Some(page(4)));
        assert_eq!(found(SeekFrom::Data(page(4))), Some(page(40)));
        assert_eq!(found(SeekFrom::Hole(page(40))), Some(page(41)));
        assert_eq!(found(SeekFrom::Data(page(41))), None);
        assert_eq!(found(SeekFrom::Data(0)), Some(0));
        assert_eq!(found(SeekFrom::Hole(0)), Some(page(1)));
        // Pages that were dropped are still mapped for those who store to them.
        mapped[2].store(8);
        let mut byte = [0];
        file.read_exact_at(&mut byte, page(40)).expect("read");
        assert_eq!(byte, [8]);
        drop((file, mapped));
        scene.must(&["umount", "mnt"]);
    }
}

#[test]
fn a_copy_of_a_file_that_is_in_use_has_what_was_stored_and_written() {
    for options in ["rw", "writeback"] {
        let scene = Scene::new();
        scene.must(&["mount", "disk.img", "mnt", "--create", "64M", "-o", options]);
        let (file, mapped) = mapped(&scene);
        file.write_all_at(&[3; 4096], page(100)).expect("append");
        let (from, to) = (scene.path("mnt/file"), scene.path("copy"));
        let args = [from.to_str().expect("text"), to.to_str().expect("text")];
        let copied = scene.run_as("cp".as_ref(), &args);
        assert!(copied.status.success(), "{copied:?}");
        let mut wanted = vec![0; page(101) as usize];
        for n in [0, 3, 40] {
            wanted[page(n) as usize] = 7;
        }
        wanted[page(2) as usize..page(3) as usize].fill(1);
        wanted[page(100) as usize..].fill(3);
        assert!(fs::read(to).expect("read") == wanted, "{options}");
        drop((file, mapped));
        scene.must(&["umount", "mnt"]);
    }
}
