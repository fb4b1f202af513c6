package main

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// Each waiter has a session, because all waiters of one session count as one owner. The sessions share a
// connection.
func connectEtcd(url, name string) (func() (Lock, error), error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}})
	if err != nil {
		return nil, err
	}
	return func() (Lock, error) {
		session, err := concurrency.NewSession(client)
		if err != nil {
			return nil, err
		}
		return etcdLock{concurrency.NewMutex(session, name)}, nil
	}, nil
}

type etcdLock struct{ mutex *concurrency.Mutex }

func (l etcdLock) Acquire() error {
	return l.mutex.Lock(context.Background())
}

func (l etcdLock) Release() error {
	return l.mutex.Unlock(context.Background())
}
