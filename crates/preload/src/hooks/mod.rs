//! The hooks, by subject.

pub(crate) mod asynchronous;
pub(crate) mod attributes;
pub(crate) mod copying;
pub(crate) mod descriptors;
pub(crate) mod directories;
pub(crate) mod extended_attributes;
pub(crate) mod files;
pub(crate) mod libraries;
pub(crate) mod listed;
pub(crate) mod locks;
pub(crate) mod map;
pub(crate) mod names;
pub(crate) mod opening;
pub(crate) mod process;
pub(crate) mod raw;
pub(crate) mod searching;
pub(crate) mod spawn_directories;
pub(crate) mod temporary;
pub(crate) mod waiting;
pub(crate) mod walking;
pub(crate) mod whereabouts;
