//! What is built of locks: jobs that run once, and leaders.

pub(crate) mod election;
pub(crate) mod jobs;
