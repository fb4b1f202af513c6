package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

const lease = 30 * time.Second

// The strategy that its documentation shows. There is no default: without a strategy it does not wait.
func redislockDefault(url, name string) (func() (Lock, error), error) {
	return connectRedislock(url, name, func() redislock.RetryStrategy {
		return redislock.LinearBackoff(100 * time.Millisecond)
	})
}

func redislockTuned(url, name string) (func() (Lock, error), error) {
	return connectRedislock(url, name, func() redislock.RetryStrategy {
		return redislock.ExponentialBackoff(time.Millisecond, 16*time.Millisecond)
	})
}

func connectRedislock(url, name string, retry func() redislock.RetryStrategy) (func() (Lock, error), error) {
	server, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	locks := redislock.New(redis.NewClient(server))
	return func() (Lock, error) { return &redisLock{locks: locks, name: name, retry: retry}, nil }, nil
}

type redisLock struct {
	locks *redislock.Client
	name  string
	retry func() redislock.RetryStrategy
	held  *redislock.Lock
}

func (l *redisLock) Acquire() (err error) {
	// An exponential strategy counts its tries, so every wait needs a new one.
	l.held, err = l.locks.Obtain(context.Background(), l.name, lease, &redislock.Options{RetryStrategy: l.retry()})
	return err
}

func (l *redisLock) Release() error {
	return l.held.Release(context.Background())
}
