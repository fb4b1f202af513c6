package main

import (
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// By default the library gives up after 32 tries, but the waiters of the comparison go on.
var untilHeld = redsync.WithTries(math.MaxInt)

func redsyncDefault(url, name string) (func() (Lock, error), error) {
	return connectRedsync(url, name, untilHeld)
}

func redsyncTuned(url, name string) (func() (Lock, error), error) {
	return connectRedsync(url, name, untilHeld, redsync.WithRetryDelay(10*time.Millisecond))
}

func connectRedsync(url, name string, options ...redsync.Option) (func() (Lock, error), error) {
	server, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	locks := redsync.New(pool.NewPool(redis.NewClient(server)))
	return func() (Lock, error) { return redsyncLock{locks.NewMutex(name, options...)}, nil }, nil
}

type redsyncLock struct{ mutex *redsync.Mutex }

func (l redsyncLock) Acquire() error {
	return l.mutex.Lock()
}

func (l redsyncLock) Release() error {
	_, err := l.mutex.Unlock()
	return err
}
