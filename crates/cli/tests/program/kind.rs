//! File systems that tests of crashes run on.

use crate::writers::Writer;

/// What is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Soup,
    /// ext3: what is replayed has nothing to be mended.
    Journaled,
    /// ext2 with soft updates: what a crash lost is found while it is in use.
    Soft,
}

impl Kind {
    pub fn mkfs(self) -> &'static [&'static str] {
        match self {
            Kind::Soup => &[],
            Kind::Journaled => &["--type", "ext2", "--journal"],
            Kind::Soft => &["--type", "ext2"],
        }
    }

    /// The size of a small image.
    pub fn least(self) -> &'static str {
        match self {
            Kind::Soup | Kind::Soft => "2M",
            Kind::Journaled => "8M",
        }
    }

    /// Whether the format has what a writer does, and what it is promised is kept.
    pub fn suits(self, writer: &Writer) -> bool {
        match self {
            Kind::Soup => true,
            // Attributes of one block, and no space that is only reserved.
            Kind::Journaled | Kind::Soft => !["xattrs", "resize"].contains(&writer.name()),
        }
    }
}
