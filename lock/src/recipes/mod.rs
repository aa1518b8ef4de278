//! Recipes built on locks: jobs and leader elections.

pub(crate) mod election;
pub(crate) mod jobs;
