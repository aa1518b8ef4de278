//! The examples as their users run them, and the permissions that the operations guide lists.

mod axum_service;
mod everyday;
#[cfg(feature = "fencing")]
mod fencing;
#[cfg(feature = "fencing")]
mod fencing_postgres;
#[cfg(feature = "fencing")]
mod fencing_service;
mod hold;
mod leader;
mod lost_lock;
mod nightly_job;
#[cfg(feature = "prometheus")]
mod prometheus;
mod quickstart;
mod server_user;
mod support;
mod synchronizers;
mod timer;
