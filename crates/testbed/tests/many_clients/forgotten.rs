//! The danger: a manager remembers for ever who used a file, and calls back what nobody has any more; or a client forgets what
//! it could go on using.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use client::{ClientOptions, WriteAt};
use host::sim::{self, Verdict};
use protocol::file::{SetAttributes, Time};
use protocol::id::InodeId;
use protocol::token::CLIENT_PORT;

use super::machines::Machines;
use super::plain;

const FILES: u64 = 20;
/// More than lives in an inode.
const BYTES: usize = 1000;

#[test]
fn what_clients_forgot_is_not_called_back() {
    sim::explore(0..8, async |world, _| {
        let machines = Machines::start(&world, 1 + world.dice().below(2) as usize, 2).await;
        let ((node, maker), (other, reader)) = (machines.client(0), machines.client(1));
        let calls = Arc::new(AtomicU64::new(0));
        let counted = calls.clone();
        world.judge_messages(move |passing| {
            counted.fetch_add(u64::from(passing.called.port.0 == CLIENT_PORT), Ordering::Relaxed);
            Verdict::Pass
        });
        let making = maker.clone();
        let made = async move {
            let mut files = Vec::new();
            for number in 0..FILES {
                let name = Bytes::from(format!("file-{number}"));
                let inode = making.create_open(InodeId::ROOT, name, plain()).await.expect("the name is new").inode;
                making.write(inode, WriteAt::End, Bytes::from(vec![7; BYTES])).await.expect("there is room");
                making.close(inode).await;
                files.push(inode);
            }
            files
        };
        let files = world.spawn(&world.host(node), made).await.unwrap();
        for waits in [false, true] {
            let (reading, used) = (reader.clone(), files.clone());
            let read = async move {
                for inode in used {
                    reading.open(inode).await.expect("it is there");
                    let bytes = reading.read(inode, 0, BYTES as u32).await.expect("it can be read").concat();
                    assert_eq!(bytes, vec![7; BYTES]);
                    reading.close(inode).await;
                }
            };
            world.spawn(&world.host(other), read).await.unwrap();
            if waits {
                world.sleep(ClientOptions::default().kept + Duration::from_secs(4)).await;
            }
            let before = calls.load(Ordering::Relaxed);
            let (telling, told) = (maker.clone(), files.clone());
            let tell = async move {
                for inode in told {
                    let before = telling.attributes(inode).await.expect("it is there");
                    let (later, changed) = (Time(before.accessed.0 + 5), before.changed);
                    let about = telling.set_attributes(inode, SetAttributes::read_at(later, changed)).await;
                    let about = about.expect("it is there");
                    assert_eq!((about.accessed, about.changed), (later, changed));
                }
            };
            world.spawn(&world.host(node), tell).await.unwrap();
            assert_eq!(calls.load(Ordering::Relaxed), before, "that a file was read changes nothing that others have");
            let (changing, changed) = (maker.clone(), files.clone());
            let change = async move {
                for inode in changed {
                    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
                    changing.set_attributes(inode, set).await.expect("it is there");
                }
            };
            world.spawn(&world.host(node), change).await.unwrap();
            let called = calls.load(Ordering::Relaxed) - before;
            assert_eq!(called == 0, waits, "{called} messages to clients");
        }
    });
}
