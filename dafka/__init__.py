"""dafka"""
