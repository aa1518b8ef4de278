//! tmp
mod common;
use common::*;
use std::sync::atomic::*;
use std::thread;
use std::time::Duration;
fn run(flush: u64) -> Duration {
    let world = World::new();
    let clients = [world.patient(), world.patient()];
    let done = AtomicBool::new(false);
    let (_, took) = timed(|| {
        thread::scope(|scope| {
            let f = scope.spawn(|| {
                if flush == 0 {
                    return;
                }
                let mut c = world.server.connection();
                let mut n = 0u64;
                while !done.load(Ordering::Acquire) {
                    c.command(&["SCRIPT", "FLUSH"]);
                    n += 1;
                    if flush > 1 {
                        pause(Duration::from_micros(flush));
                    }
                }
                println!("{n} flushes");
            });
            let w: Vec<_> = (0..4)
                .map(|i| {
                    let lock = clients[i % 2].lock("a");
                    scope.spawn(move || {
                        for _ in 0..40 {
                            let g = lock.lock().unwrap();
                            g.unlock().unwrap();
                        }
                    })
                })
                .collect();
            for w in w {
                w.join().unwrap();
            }
            done.store(true, Ordering::Release);
            f.join().unwrap();
        })
    });
    println!(
        "calls evalsha {} eval {} ",
        world.server.command_calls("evalsha"),
        world.server.command_calls("eval")
    );
    took
}
#[test]
fn tmp_loop() { for _ in 0..25 { let t = run(1); if t > Duration::from_secs(4) { println!("SLOW {t:?}"); } else { println!("fine {t:?}"); } } }
#[test]
fn tmp() {
    for f in [0, 1, 2000] {
        println!("flush {f}: {:?}", run(f));
    }
}
