//! Page tables of paged memory, as the kernel counts them for the process: one test alone.

use block::OpenOptions;
use pmem::PAGE;
use pmem::paged::{Options, Paged};

/// What one page table maps.
const MAPPED: u64 = 2 << 20;
const IMAGE: u64 = 16 << 30;
/// Pages of the cache.
const CACHE: u64 = 64;
/// Tables of pages in the cache, and of what else the process maps meanwhile.
const TABLES_MAX: u64 = CACHE + 128;

/// The resident page tables of this process, in bytes.
fn page_tables() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.expect("a number").parse::<u64>().expect("KiB") * 1024
}

/// Whether the kernel gives page tables back at all: Linux 6.14 and later, on x86-64.
fn gives_back() -> bool {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    cfg!(target_arch = "x86_64") && version >= (6, 14)
}

/// An image much larger than the cache, of which one page in each 2 MiB is loaded, twice: without
/// care that would leave a table for each, 8,192 of them.
#[test]
fn tables_go_with_the_last_page_that_they_map() {
    if !gives_back() {
        testing::skip!("before Linux 6.14 no page tables are given back");
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(IMAGE).expect("length");
    for faults in [true, false] {
        let options = Options {
            faults,
            ..Options::new(CACHE * PAGE)
        };
        let disk = OpenOptions::default().open(file.path()).expect("a disk");
        let paged = Paged::new(disk, &options).expect("memory");
        if faults && !paged.by_faults() {
            testing::skip!("needs userfaultfd, which is refused here");
        }
        let before = page_tables();
        for round in 0..2 {
            for (i, at) in (0..IMAGE).step_by(MAPPED as usize).enumerate() {
                let page = (i as u64 * 7) % (MAPPED / PAGE);
                assert_eq!(paged.load(at + page * PAGE), 0, "round {round}");
            }
            let more = page_tables().saturating_sub(before) / 4096;
            println!("by faults: {faults}; {more} tables more");
            assert!(
                more <= TABLES_MAX,
                "by faults: {faults}; {more} tables more"
            );
        }
        assert!(paged.stats().dropped > 2 * IMAGE / MAPPED - 2 * CACHE);
    }
}
