//! A name in a directory that is given by handle.

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) dir: &'a [u8],
    pub(crate) name: &'a [u8],
}
