//! The superblock, and its copy.

use crate::layout::{Geometry, IMAGE_MAX, IMAGE_MIN, PAGE, inode, page_at, superblock};
use pmem::Pool;
use vfs::Time;

/// The superblock, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Where everything is.
    pub geometry: Geometry,
    /// Line of the root inode.
    pub root: u64,
    /// Features that whoever writes must know, and that are not known here.
    pub ro_compat: u64,
    /// When the image was formatted.
    pub created: Time,
    /// Identifier.
    pub uuid: [u8; 16],
    /// Key of the name hash; secret, so that nobody can make names collide.
    pub hash_key: [u8; 16],
    /// The user's name for it.
    pub label: String,
}

/// Why a superblock was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSuperblock {
    /// The first bytes are not ours.
    #[error("this is not a Tureen image (no magic number)")]
    Magic,
    /// The checksum does not match: torn or overwritten.
    #[error("the superblock is damaged (bad checksum)")]
    Checksum,
    /// A later version.
    #[error(
        "the image has format version {0}, this program knows version {known}",
        known = superblock::VERSION
    )]
    Version(u32),
    /// Features of a later version.
    #[error("the image uses features this program does not know ({0:#x})")]
    Features(u64),
    /// The image is shorter than it says.
    #[error("the image is truncated: {found} bytes of {expected}")]
    Truncated {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// The medium cannot be read there.
    #[error("the superblock cannot be read: {0}")]
    Unreadable(String),
    /// The numbers contradict each other.
    #[error("the superblock contradicts itself: {0}")]
    Nonsense(&'static str),
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(bytes, at))
}

impl Superblock {
    /// The bytes of the superblock, checksum included.
    pub fn encode(&self) -> [u8; superblock::LEN] {
        use superblock::*;
        let mut b = [0; LEN];
        let mut put = |at: usize, bytes: &[u8]| b[at..at + bytes.len()].copy_from_slice(bytes);
        put(AT_MAGIC, &MAGIC.to_le_bytes());
        put(AT_VERSION, &VERSION.to_le_bytes());
        put(AT_PAGES, &self.geometry.pages.to_le_bytes());
        put(AT_JOURNAL, &self.geometry.journal.to_le_bytes());
        put(AT_JOURNAL_PAGES, &self.geometry.journal_pages.to_le_bytes());
        put(AT_SUMMARIES, &self.geometry.summaries.to_le_bytes());
        put(AT_ROOT, &self.root.to_le_bytes());
        put(AT_CREATED, &self.created.0.to_le_bytes());
        put(AT_UUID, &self.uuid);
        put(AT_HASH_KEY, &self.hash_key);
        put(AT_LABEL, self.label.as_bytes());
        let sum = xxhash_rust::xxh3::xxh3_64(&b[..AT_CHECKSUM]);
        b[AT_CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// Validate the superblock in this page.
    pub fn read(pool: &Pool, page: u64) -> std::result::Result<Superblock, BadSuperblock> {
        let mut b = [0; superblock::LEN];
        if page_at(page) + PAGE > pool.len() {
            return Err(BadSuperblock::Truncated {
                found: pool.len(),
                expected: page_at(page) + PAGE,
            });
        }
        let read = pool.try_read(page_at(page), &mut b);
        read.map_err(|error| BadSuperblock::Unreadable(error.to_string()))?;
        Self::decode(&b, pool.len())
    }

    pub(crate) fn decode(
        b: &[u8; superblock::LEN],
        found: u64,
    ) -> std::result::Result<Superblock, BadSuperblock> {
        use superblock::*;
        if get_u64(b, AT_MAGIC) != MAGIC {
            return Err(BadSuperblock::Magic);
        }
        if get_u64(b, AT_CHECKSUM) != xxhash_rust::xxh3::xxh3_64(&b[..AT_CHECKSUM]) {
            return Err(BadSuperblock::Checksum);
        }
        let version = u32::from_le_bytes(get(b, AT_VERSION));
        if version != VERSION {
            return Err(BadSuperblock::Version(version));
        }
        let unknown = get_u64(b, AT_INCOMPAT) & !INCOMPAT_KNOWN;
        if unknown != 0 {
            return Err(BadSuperblock::Features(unknown));
        }
        let pages = get_u64(b, AT_PAGES);
        if !(IMAGE_MIN / PAGE..=IMAGE_MAX / PAGE).contains(&pages) {
            return Err(BadSuperblock::Nonsense("length out of range"));
        }
        if pages * PAGE > found {
            return Err(BadSuperblock::Truncated {
                found,
                expected: pages * PAGE,
            });
        }
        let geometry = Geometry {
            pages,
            journal: get_u64(b, AT_JOURNAL),
            journal_pages: get_u64(b, AT_JOURNAL_PAGES),
            summaries: get_u64(b, AT_SUMMARIES),
        };
        if geometry != Geometry::for_len(pages * PAGE) {
            return Err(BadSuperblock::Nonsense(
                "its parts are not where they belong",
            ));
        }
        let root = get_u64(b, AT_ROOT);
        if !root.is_multiple_of(inode::LINES) || !geometry.holds_line(root) {
            return Err(BadSuperblock::Nonsense("the root inode is out of range"));
        }
        let label = &b[AT_LABEL..AT_CHECKSUM];
        let end = label.iter().position(|&c| c == 0).unwrap_or(label.len());
        Ok(Superblock {
            geometry,
            root,
            ro_compat: get_u64(b, AT_RO_COMPAT) & !RO_COMPAT_KNOWN,
            created: Time(get_u64(b, AT_CREATED) as i64),
            uuid: get(b, AT_UUID),
            hash_key: get(b, AT_HASH_KEY),
            label: String::from_utf8_lossy(&label[..end]).into_owned(),
        })
    }

    /// The superblock, or its copy when the first is damaged (then with the reason).
    pub fn find(
        pool: &Pool,
    ) -> std::result::Result<(Superblock, Option<BadSuperblock>), BadSuperblock> {
        match Self::read(pool, 0) {
            Ok(sb) => Ok((sb, None)),
            Err(
                why @ (BadSuperblock::Magic
                | BadSuperblock::Checksum
                | BadSuperblock::Unreadable(_)),
            ) => {
                let pages = Geometry::for_len(pool.len()).pages;
                match Self::read(pool, pages - 1) {
                    Ok(sb) => Ok((sb, Some(why))),
                    Err(_) => Err(why),
                }
            }
            Err(why) => Err(why),
        }
    }
}
