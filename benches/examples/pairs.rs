//! Temporary: pairs for profiling.
use wheellock_benches::lock_unlocks;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let n: usize = a[2].parse().unwrap();
    let server = wheellock_fixture::Server::start();
    let mut c = lock_unlocks(&server);
    let c = c.iter_mut().find(|c| c.name().starts_with(&a[1])).unwrap();
    for _ in 0..n { c.sample(); }
}
