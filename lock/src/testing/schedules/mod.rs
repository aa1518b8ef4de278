//! Threads in many schedules (DESIGN: schedules): those of a client, and those on a connection.

mod client;
mod connection;
