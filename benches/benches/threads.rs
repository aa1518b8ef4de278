//! Lock and unlock with several threads of one client, on locks of their own and on one lock: the
//! time of one pair, of all threads together.
//!
//! Criterion runs them one after the other. For ratios use `lock_report threads`, which runs them
//! in turn with raw connections and Redisson.

use std::net::SocketAddr;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use wheellock_benches::ManyThreads;
use wheellock_fixture::Server;

fn own_names(criterion: &mut Criterion) {
    scaling(criterion, "own_names", &[1, 4, 16, 64, 256], ManyThreads::on_own_names);
}

fn one_name(criterion: &mut Criterion) {
    scaling(criterion, "one_name", &[1, 2, 4, 16, 64], ManyThreads::on_one_name);
}

fn scaling(
    criterion: &mut Criterion,
    name: &str,
    threads: &[usize],
    start: fn(SocketAddr, usize) -> ManyThreads,
) {
    let server = Server::start();
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10).warm_up_time(Duration::from_millis(500));
    group.throughput(Throughput::Elements(1));
    for &threads in threads {
        let many = start(server.address(), threads);
        group.bench_function(BenchmarkId::new("wheellock", threads), |bencher| {
            bencher.iter_custom(|pairs| many.run(pairs));
        });
    }
    group.finish();
}

criterion_group!(benches, own_names, one_name);
criterion_main!(benches);
