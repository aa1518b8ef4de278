//! Whether the guard of several locks stays on its thread.

use std::marker::PhantomData;
use std::sync::MutexGuard;

/// Of a [`MultiGuard`](crate::MultiGuard) or a [`RedGuard`](crate::RedGuard): it belongs to the thread that took it, and
/// cannot be sent to another.
#[derive(Debug)]
pub struct ThisThread {
    /// A standard guard can be shared but not sent, and so can those.
    _thread: PhantomData<MutexGuard<'static, ()>>,
}

/// Of a [`MultiGuard`](crate::MultiGuard) or a [`RedGuard`](crate::RedGuard): it belongs to a named owner, and may be
/// sent to another thread and released there.
#[derive(Debug)]
pub struct AnyThread;
