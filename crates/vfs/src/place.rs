//! Places that operations have two of: names in directories, offsets in files.

/// A name in a directory.
#[derive(Debug)]
pub struct Place<'a, N> {
    /// The directory.
    pub dir: &'a N,
    /// The name in it.
    pub name: &'a [u8],
}

impl<'a, N> Place<'a, N> {
    /// The name in the directory.
    pub fn new(dir: &'a N, name: &'a [u8]) -> Place<'a, N> {
        Place { dir, name }
    }
}

/// An offset in a file's contents.
#[derive(Debug)]
pub struct At<'a, N> {
    /// The file.
    pub node: &'a N,
    /// Bytes from its beginning.
    pub offset: u64,
}

impl<'a, N> At<'a, N> {
    /// The offset in the file.
    pub fn new(node: &'a N, offset: u64) -> At<'a, N> {
        At { node, offset }
    }
}

// Derived ones would ask the same of `N`, which is only referred to.
impl<N> Copy for Place<'_, N> {}
impl<N> Copy for At<'_, N> {}

impl<N> Clone for Place<'_, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Clone for At<'_, N> {
    fn clone(&self) -> Self {
        *self
    }
}
