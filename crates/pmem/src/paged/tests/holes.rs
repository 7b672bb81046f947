//! Images with holes.

use block::OpenOptions;

use super::{SMALL, contents, ways};
use crate::PAGE;
use crate::paged::Paged;

const PAGES: u64 = 256;

#[test]
fn what_was_never_written_is_not_read() {
    for way in ways(SMALL) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(PAGES * PAGE).expect("length");
        let disk = OpenOptions::default().open(file.path()).expect("a disk");
        let paged = Paged::new(disk.clone(), &way).expect("memory");
        assert!(contents(&paged) == vec![0; (PAGES * PAGE) as usize]);
        let stats = paged.stats();
        assert_eq!(stats.misses + stats.read_ahead, PAGES);
        assert_eq!(disk.stats().reads, 0, "{way:?}");

        // What is written is no hole any more, when it has gone from memory and comes back.
        let mut expected = vec![0; (PAGES * PAGE) as usize];
        for page in (0..PAGES).step_by(16) {
            let at = page * PAGE + 8;
            paged.store(at, page + 1);
            paged.flush(at, 8);
            expected[at as usize..][..8].copy_from_slice(&(page + 1).to_le_bytes());
        }
        paged.fence().expect("no fault");
        assert!(contents(&paged) == expected);
        // Hosts have blocks of different sizes, none as large as the distance of what was written.
        let reads = disk.stats().reads;
        assert!((1..=PAGES / 2).contains(&reads), "{way:?}: {reads} reads");

        // And what was discarded is one again.
        paged.discard(0, PAGES * PAGE).expect("holes");
        assert!(contents(&paged) == vec![0; (PAGES * PAGE) as usize]);
        assert_eq!(disk.stats().reads, reads, "{way:?}");
    }
}
